/* Functions for one unit (one channel of a tile). lossless_tiles.c includes them twice, with SAMPLE and BITS set. */

#define PASTE_(name, bits) name##bits
#define PASTE(name, bits) PASTE_(name, bits)
#define F(name) PASTE(name, BITS)

/* Computes the zigzag-coded residuals of a tile; residuals outside (height, width) are zero. */
FAST static void F(residuals_)(SAMPLE *restrict out, const SAMPLE *restrict tile, int predictor, int height, int width) {
    SAMPLE row[TILE];
    memset(out, 0, sizeof(SAMPLE) * TILE * TILE);
    for (int y = 0; y < height; y++) {
        const SAMPLE *at = tile + y * TILE, *above = y > 0 ? at - TILE : at;
        if (predictor == UP && y > 0)
            for (int x = 0; x < TILE; x++) row[x] = (SAMPLE)(at[x] - above[x]);
        else if (predictor == PLANE && y > 0) {
            SAMPLE down[TILE];
            for (int x = 0; x < TILE; x++) down[x] = (SAMPLE)(at[x] - above[x]);
            row[0] = down[0];
            for (int x = 1; x < TILE; x++) row[x] = (SAMPLE)(down[x] - down[x - 1]);
        } else {
            row[0] = (SAMPLE)(y > 0 ? at[0] - above[0] : 0);
            for (int x = 1; x < TILE; x++) row[x] = (SAMPLE)(at[x] - at[x - 1]);
        }
        for (int x = 0; x < TILE; x++)
            row[x] = (SAMPLE)((SAMPLE)(row[x] << 1) ^ (SAMPLE)(0 - (row[x] >> (BITS - 1))));
        memcpy(out + y * TILE, row, sizeof(SAMPLE) * (size_t)width);
    }
}

/* Computes the width codes of a unit's blocks, a grid of 16 by 16; returns the size of the blocks in bytes. */
FAST static int F(measure_)(uint8_t *restrict grid, const SAMPLE *restrict values) {
    int cost = 0;
    for (int by = 0; by < GRID; by++) {
        SAMPLE row[TILE];
        const SAMPLE *at = values + by * SIDE * TILE;
        for (int x = 0; x < TILE; x++)
            row[x] = (SAMPLE)(at[x] | at[x + TILE] | at[x + 2 * TILE] | at[x + 3 * TILE]);
        for (int bx = 0; bx < GRID; bx++) {
            unsigned all = (unsigned)row[4 * bx] | row[4 * bx + 1] | row[4 * bx + 2] | row[4 * bx + 3];
            int width = all ? 32 - __builtin_clz(all) : 0;
            if (width == 15) width = 16;
            grid[by * GRID + bx] = (uint8_t)(width == 16 ? 15 : width);
            cost += 2 * width;
        }
    }
    return cost;
}

/* Appends the planes of a unit to the three sections. */
static void F(pack_)(Sections *to, const SAMPLE *values, const uint8_t *grid, int num_down, int num_across) {
    for (int by = 0; by < num_down; by++)
        for (int bx = 0; bx < num_across; bx++) {
            int code = grid[by * GRID + bx], width = code == 15 ? 16 : code;
            const SAMPLE *at = values + by * SIDE * TILE + bx * SIDE;
            uint16_t planes[16] = {0};
#if BITS == 8
            uint64_t low = 0, high = 0;
            for (int i = 0; i < 8; i++) {
                low |= (uint64_t)at[(i >> 2) * TILE + (i & 3)] << (8 * i);
                high |= (uint64_t)at[(2 + (i >> 2)) * TILE + (i & 3)] << (8 * i);
            }
            low = transposed(low);
            high = transposed(high);
            for (int plane = 0; plane < 8; plane++)
                planes[plane] = (uint16_t)((low >> (8 * plane) & 255) | (high >> (8 * plane) & 255) << 8);
#else
            for (int i = 0; i < 16; i++)
                for (int plane = 0; plane < width; plane++)
                    planes[plane] |= (uint16_t)((at[(i >> 2) * TILE + (i & 3)] >> plane & 1) << i);
#endif
            for (int plane = 0; plane < width; plane++) {
                uint8_t **section = plane == width - 1 ? &to->top : plane == width - 2 ? &to->second : &to->rest;
                (*section)[0] = (uint8_t)planes[plane];
                (*section)[1] = (uint8_t)(planes[plane] >> 8);
                *section += 2;
            }
        }
}

/* Chooses the predictor with the smallest size for a plane of samples, and stores its residuals and widths. */
static int F(choose_)(Choice *best, const SAMPLE *tile, int height, int width) {
    SAMPLE values[TILE * TILE];
    uint8_t grid[GRID * GRID];
    for (int predictor = LEFT; predictor <= PLANE; predictor++) {
        F(residuals_)(values, tile, predictor, height, width);
        int cost = F(measure_)(grid, values);
        if (predictor > LEFT && cost >= best->cost) continue;
        best->cost = cost;
        best->predictor = predictor;
        memcpy(best->grid, grid, sizeof grid);
        memcpy(best->values, values, sizeof values);
    }
    return best->cost;
}

/* Converts residuals to samples, in place; the first residual has been replaced by the first sample. */
FAST static void F(sum_)(SAMPLE *tile, int predictor, int height) {
    if (predictor == LEFT)
        for (int y = 1; y < height; y++) tile[y * TILE] = (SAMPLE)(tile[y * TILE] + tile[(y - 1) * TILE]);
    for (int y = 0; y < (predictor == UP ? 1 : height); y++) F(sum_row_)(tile + y * TILE);
    if (predictor != LEFT)
        for (int y = 1; y < height; y++) {
            SAMPLE *restrict at = tile + y * TILE;
            const SAMPLE *above = at - TILE;
            for (int x = 0; x < TILE; x++) at[x] = (SAMPLE)(at[x] + above[x]);
        }
}

/* Copies a tile from the plane of an image, with zeros outside the image. */
static void F(cut_)(SAMPLE *tile, const SAMPLE *plane, int64_t stride, int height, int width) {
    memset(tile, 0, sizeof(SAMPLE) * TILE * TILE);
    for (int y = 0; y < height; y++) memcpy(tile + y * TILE, plane + y * stride, sizeof(SAMPLE) * (size_t)width);
}

/* Packs the tiles of a group. */
static void F(pack_group_)(const Shape *shape, const Group *group, const SAMPLE *pixels, Packed *to) {
    SAMPLE tiles[MAX_CHANNELS][TILE * TILE], less[2][TILE * TILE];
    Choice *plain = to->choices, *minus = to->choices + MAX_CHANNELS;
    int64_t plane_size = shape->height * shape->width;
    Sections sections = {to->top, to->second, to->rest};
    uint8_t *widths = to->head + group->num_tiles * (2 + shape->channels * (int)sizeof(SAMPLE));
    for (int number = 0; number < group->num_tiles; number++) {
        Extent extent = extent_of(shape, group, number);
        unsigned mode = 0;
        const Choice *chosen[MAX_CHANNELS];
        for (int channel = 0; channel < shape->channels; channel++) {
            F(cut_)(tiles[channel], pixels + channel * plane_size + extent.top * shape->width + extent.left,
                    shape->width, extent.height, extent.width);
            F(choose_)(plain + channel, tiles[channel], extent.height, extent.width);
            chosen[channel] = plain + channel;
        }
        if (shape->channels >= 3) {
            for (int i = 0; i < 2; i++) {
                for (int at = 0; at < TILE * TILE; at++) less[i][at] = (SAMPLE)(tiles[2 * i][at] - tiles[1][at]);
                F(choose_)(minus + i, less[i], extent.height, extent.width);
            }
            if (minus[0].cost + minus[1].cost < plain[0].cost + plain[2].cost) {
                mode |= SUBTRACT_GREEN;
                chosen[0] = minus;
                chosen[2] = minus + 1;
            }
        }
        for (int channel = 0; channel < shape->channels; channel++) {
            const Choice *choice = chosen[channel];
            int is_less = (mode & SUBTRACT_GREEN) && (channel == 0 || channel == 2);
            SAMPLE first = is_less ? less[channel / 2][0] : tiles[channel][0];
            uint8_t *start = to->head + 2 * group->num_tiles +
                             (number * shape->channels + channel) * (int)sizeof(SAMPLE);
            start[0] = (uint8_t)first;
            if (sizeof(SAMPLE) == 2) start[1] = (uint8_t)(first >> (BITS - 8));
            mode |= (unsigned)choice->predictor << (2 * channel);
            int count = 0;
            for (int by = 0; by < extent.num_down; by++)
                for (int bx = 0; bx < extent.num_across; bx++, count++) {
                    uint8_t code = choice->grid[by * GRID + bx];
                    if (count & 1)
                        widths[count / 2] |= (uint8_t)(code << 4);
                    else
                        widths[count / 2] = code;
                }
            widths += (count + 1) / 2;
            F(pack_)(&sections, (const SAMPLE *)choice->values, choice->grid, extent.num_down, extent.num_across);
        }
        to->head[2 * number] = (uint8_t)mode;
        to->head[2 * number + 1] = (uint8_t)(mode >> 8);
    }
    to->head_bytes = widths - to->head;
    to->top_bytes = sections.top - to->top;
    to->second_bytes = sections.second - to->second;
    to->rest_bytes = sections.rest - to->rest;
}

/* Writes the part of a tile that lies in the box. */
FAST static void F(put_)(const Target *target, const Extent *extent, unsigned mode,
                         SAMPLE tiles[MAX_CHANNELS][TILE * TILE]) {
    int64_t top = extent->top > target->top ? extent->top : target->top;
    int64_t left = extent->left > target->left ? extent->left : target->left;
    int64_t bottom = extent->top + extent->height, right = extent->left + extent->width;
    if (bottom > target->top + target->height) bottom = target->top + target->height;
    if (right > target->left + target->width) right = target->left + target->width;
    size_t count = (size_t)(right - left);
    for (int channel = 0; channel < target->channels; channel++) {
        int is_less = (mode & SUBTRACT_GREEN) && (channel == 0 || channel == 2);
        for (int64_t y = top; y < bottom; y++) {
            SAMPLE *restrict out = (SAMPLE *)target->out +
                                   (channel * target->height + y - target->top) * target->width + left - target->left;
            const SAMPLE *from = tiles[channel] + (y - extent->top) * TILE + (left - extent->left);
            if (is_less) {
                const SAMPLE *green = tiles[1] + (y - extent->top) * TILE + (left - extent->left);
                if (count == TILE)
                    for (size_t x = 0; x < TILE; x++) out[x] = (SAMPLE)(from[x] + green[x]);
                else
                    for (size_t x = 0; x < count; x++) out[x] = (SAMPLE)(from[x] + green[x]);
            } else if (count == TILE)
                memcpy(out, from, sizeof(SAMPLE) * TILE);
            else
                memcpy(out, from, sizeof(SAMPLE) * count);
        }
    }
}

#undef F
#undef PASTE
#undef PASTE_
