/* Draws line plots as inline SVG, without scripts, fonts or external resources. Colours come from
 * the page's style sheet: classes "line0" to "line3", "axis", "grid". Lines also differ by their
 * dashes, for colour-blind readers. */
#ifndef TUTTI_LOAD_PLOT_H
#define TUTTI_LOAD_PLOT_H

#include "base/buf.h"

enum { PLOT_MAX_LINES = 4 };

struct plot_line {
    const char *name;
    const double *x, *y; /* [n]; x does not decrease; points that are not finite are gaps */
    size_t n;
};

struct plot {
    const char *title, *x_name, *y_name; /* with their units */
    bool log_x;                          /* x is then above 0 */
    double y_max;                        /* 0: from the lines */
    struct plot_line lines[PLOT_MAX_LINES];
    int n_lines;
};

/* Adds a <figure>. Texts are escaped. False: out of memory. */
MUST_CHECK bool plot_add(struct buf *out, const struct plot *plot);

/* Appends text, escaped for HTML and SVG. */
MUST_CHECK bool plot_add_text(struct buf *out, const char *text);

#endif
