#include "load/plot.h"

#include <math.h>
#include <string.h>

/* In the units of the viewBox. */
enum { WIDTH = 720, HEIGHT = 300, LEFT = 64, RIGHT = 16, TOP = 12, BOTTOM = 44, MAX_TICKS = 40 };

static const double LEAST_X = 1e-3; /* of a logarithmic axis: one microsecond */

struct axis {
    double low, high; /* of a logarithmic one: their decimal logarithms */
    double from, to;  /* where they are drawn */
    bool is_log;
};

bool plot_add_text(struct buf *out, const char *text)
{
    bool ok = true;
    for (; ok && *text; text++)
        ok = *text == '&'   ? buf_add_string(out, "&amp;")
             : *text == '<' ? buf_add_string(out, "&lt;")
             : *text == '>' ? buf_add_string(out, "&gt;")
             : *text == '"' ? buf_add_string(out, "&quot;")
                            : buf_add(out, text, 1);
    return ok;
}

static double place(const struct axis *a, double value)
{
    double v = !a->is_log ? value : log10(value > LEAST_X ? value : LEAST_X);
    return a->from + (a->to - a->from) * (v - a->low) / (a->high - a->low);
}

/* The smallest of 1, 2, 5, 10, 20, ... that is not below value. */
static double round_up(double value)
{
    double power = pow(10, floor(log10(value)));
    double part = value / power;
    return power * (part <= 1.0001 ? 1 : part <= 2.0001 ? 2 : part <= 5.0001 ? 5 : 10);
}

/* Computes the ticks of the axis; returns their number. */
static int find_ticks(const struct axis *a, double ticks[MAX_TICKS])
{
    int n = 0;
    if (a->is_log) {
        bool narrow = a->high - a->low < 2.5;
        for (double decade = floor(a->low); decade <= a->high && n < MAX_TICKS; decade++)
            for (int i = 0; i < (narrow ? 3 : 1) && n < MAX_TICKS; i++) {
                double at = decade + (i == 0 ? 0 : log10(i == 1 ? 2 : 5));
                if (at >= a->low - 1e-9 && at <= a->high + 1e-9)
                    ticks[n++] = pow(10, at);
            }
        return n;
    }
    double step = round_up((a->high - a->low) / 6);
    for (double i = ceil(a->low / step - 1e-9); i * step <= a->high * (1 + 1e-9) && n < MAX_TICKS; i++)
        ticks[n++] = i * step + 0.0; /* no "-0" */
    return n;
}

static void find_range(const struct plot *plot, struct axis *x, struct axis *y)
{
    double least = INFINITY, most = -INFINITY, highest = 0;
    for (int k = 0; k < plot->n_lines; k++)
        for (size_t i = 0; i < plot->lines[k].n; i++) {
            double at = plot->lines[k].x[i], value = plot->lines[k].y[i];
            if (!isfinite(at) || !isfinite(value))
                continue;
            at = plot->log_x && at < LEAST_X ? LEAST_X : at;
            least = fmin(least, at);
            most = fmax(most, at);
            highest = fmax(highest, value);
        }
    *x = (struct axis){ .from = LEFT, .to = WIDTH - RIGHT, .is_log = plot->log_x };
    *y = (struct axis){ .from = HEIGHT - BOTTOM, .to = TOP };
    x->low = plot->log_x ? log10(least) : 0;
    x->high = plot->log_x ? log10(most) : most;
    if (!(x->high - x->low > 1e-6)) { /* a single place */
        x->low -= plot->log_x ? 0.5 : 0;
        x->high += plot->log_x ? 0.5 : 1;
    }
    y->high = plot->y_max > 0 ? plot->y_max : highest > 0 ? highest * 1.05 : 1;
}

/* %g, with thousands as 12k and 3.5M. */
static bool add_number(struct buf *out, double value)
{
    return value >= 1e6    ? buf_printf(out, "%gM", value / 1e6)
           : value >= 10e3 ? buf_printf(out, "%gk", value / 1e3)
                           : buf_printf(out, "%g", value);
}

static bool add_axes(struct buf *out, const struct plot *plot, const struct axis *x, const struct axis *y)
{
    double ticks[MAX_TICKS];
    bool ok = true;
    int n = find_ticks(y, ticks);
    for (int i = 0; ok && i < n; i++) {
        double at = place(y, ticks[i]);
        ok = buf_printf(out,
                        "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                        "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                        LEFT, at, WIDTH - RIGHT, at, LEFT - 8, at + 4) &&
             add_number(out, ticks[i]) && buf_add_string(out, "</text>\n");
    }
    n = find_ticks(x, ticks);
    for (int i = 0; ok && i < n; i++) {
        double at = place(x, ticks[i]);
        ok = buf_printf(out,
                        "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
                        "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">",
                        at, TOP, at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 18) &&
             add_number(out, ticks[i]) && buf_add_string(out, "</text>\n");
    }
    return ok &&
           buf_printf(out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
                      WIDTH - RIGHT) &&
           buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", WIDTH - RIGHT, HEIGHT - 6) &&
           plot_add_text(out, plot->x_name) &&
           buf_printf(out, "</text>\n<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"end\">",
                      TOP) &&
           plot_add_text(out, plot->y_name) && buf_add_string(out, "</text>\n");
}

static bool add_line(struct buf *out, const struct plot_line *line, int which, const struct axis *x,
                     const struct axis *y)
{
    bool ok = buf_printf(out, "<path class=\"line line%d\" d=\"", which), is_down = false;
    double last_x = -1, last_y = -1;
    for (size_t i = 0; ok && i < line->n; i++) {
        double at = place(x, line->x[i]), height = place(y, fmin(line->y[i], y->high));
        if (!isfinite(line->x[i]) || !isfinite(line->y[i])) {
            is_down = false;
            continue;
        }
        if (is_down && fabs(at - last_x) < 0.05 && fabs(height - last_y) < 0.05)
            continue; /* cannot be seen */
        /* The point is drawn as a dot if it is isolated. */
        ok = buf_printf(out, is_down ? "L%.1f %.1f" : "M%.1f %.1fh0", at, height);
        is_down = true;
        last_x = at;
        last_y = height;
    }
    return ok && buf_add_string(out, "\"><title>") && plot_add_text(out, line->name) &&
           buf_add_string(out, "</title></path>\n");
}

bool plot_add(struct buf *out, const struct plot *plot)
{
    struct axis x, y;
    find_range(plot, &x, &y);
    bool ok = buf_add_string(out, "<figure><figcaption><b>") && plot_add_text(out, plot->title) &&
              buf_add_string(out, "</b>");
    for (int i = 0; ok && i < plot->n_lines; i++)
        ok = buf_printf(out,
                        " <span><svg class=\"key\" viewBox=\"0 0 28 10\" aria-hidden=\"true\">"
                        "<path class=\"line line%d\" d=\"M0 5H28\"/></svg>",
                        i) &&
             plot_add_text(out, plot->lines[i].name) && buf_add_string(out, "</span>");
    ok = ok &&
         buf_printf(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
                    HEIGHT) &&
         plot_add_text(out, plot->title) && buf_add_string(out, "\">\n");
    if (isfinite(x.low) && isfinite(x.high)) {
        ok = ok && add_axes(out, plot, &x, &y);
        for (int i = 0; ok && i < plot->n_lines; i++)
            ok = add_line(out, &plot->lines[i], i, &x, &y);
    } else {
        ok = ok && buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no data</text>\n",
                              WIDTH / 2, HEIGHT / 2);
    }
    return ok && buf_add_string(out, "</svg></figure>\n");
}
