/* A picture of a mask as a file: PNG for documents, SVG with axes and a legend. */
#ifndef FM_CLI_IMAGE_H
#define FM_CLI_IMAGE_H

#include "picture.h"

typedef struct fm_image {
    const char *title;
    fm_mask_shape shape;
    fm_plan_stats stats; /* of the tiles that are drawn */
    const fm_picture *picture;
} fm_image;

/* Most cells along one side that still leave room for lines between tiles. */
enum { FM_IMAGE_CELLS = 512 };

/* About 1024 pixels on the longer side, cells of whole pixels, lines between tiles where they are 8 pixels apart or more. */
bool fm_image_save_png(const char *path, const fm_image *image);
bool fm_image_save_svg(const char *path, const fm_image *image);

#endif
