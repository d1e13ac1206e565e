/* Line plots as inline SVG: no script, no font, nothing from elsewhere. Colours are those of the page's style sheet:
 * classes "line0" to "line3", "axis", "grid"; lines differ by their dashes as well, for those who do not see colours. */
#ifndef TUTTI_LOAD_PLOT_H
#define TUTTI_LOAD_PLOT_H

#include "base/buf.h"

enum { PLOT_MAX_LINES = 4 };

struct plot_line {
    const char *name;
    const double *x, *y; /* [n]; x does not fall; points that are not finite are gaps */
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

/* Adds text so that it stands for itself in HTML and SVG. */
MUST_CHECK bool plot_add_text(struct buf *out, const char *text);

#endif
