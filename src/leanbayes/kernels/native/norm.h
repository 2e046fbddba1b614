/* Batch normalisation of a blocked activation, [blocks][positions][channels][lanes], with a rectifier behind it if wanted.
 * Lanes beyond the batch (the last block may have some) count for nothing, and their gradient is zero.
 */

static inline vf NAME(lanes_of)(vf v, int64_t at, int64_t valid) { /* v in the lanes before `valid`, zero behind */
  if (at + WIDTH <= valid) return v;
  for (int i = 0; i < WIDTH; i++)
    if (at + i >= valid) v[i] = 0.0f;
  return v;
}

/* Sums of a pass over the activations: for forward (g == NULL) of x - shift and its square, for backward of dy and dy xhat.
 * y: what the rectifier let through, or NULL where there is none. */
static void NAME(norm_sums)(const extent *n, const float *x, const float *g, const float *y, const float *shift,
                            const float *scale, double *first, double *second) {
  const int64_t L = n->lanes, rows = n->blocks * n->positions, step = 64, pieces = (rows + step - 1) / step;
  double *partial = calloc((size_t)(2 * pieces * n->channels), sizeof(double));
#pragma omp parallel for schedule(static)
  for (int64_t piece = 0; piece < pieces; piece++) {
    vf *sums = aligned_alloc(64, (sizeof(vf) * 2 * n->channels + 63) / 64 * 64);
    for (int64_t c = 0; c < 2 * n->channels; c++) sums[c] = NAME(all)(0.0f);
    for (int64_t r = piece * step; r < (piece + 1) * step && r < rows; r++) {
      const int64_t valid = n->batch - r / n->positions * L;
      for (int64_t c = 0; c < n->channels; c++) {
        const int64_t at = (r * n->channels + c) * L;
        const vf middle = NAME(all)(shift[c]);
        vf a = sums[2 * c], b = sums[2 * c + 1];
        for (int64_t l = 0; l < L && l < valid; l += WIDTH) {
          vf centred = NAME(load)(x + at + l) - middle;
          if (g) {
            vf dy = NAME(load)(g + at + l);
            if (y) dy = (vf)((vi)dy & (vi)(NAME(load)(y + at + l) > 0.0f));
            dy = NAME(lanes_of)(dy, l, valid);
            a += dy;
            b += dy * (centred * scale[c]);
          } else {
            centred = NAME(lanes_of)(centred, l, valid);
            a += centred;
            b += centred * centred;
          }
        }
        sums[2 * c] = a;
        sums[2 * c + 1] = b;
      }
    }
    for (int64_t c = 0; c < 2 * n->channels; c++)
      for (int i = 0; i < WIDTH; i++) partial[piece * 2 * n->channels + c] += (double)sums[c][i];
    free(sums);
  }
  for (int64_t c = 0; c < n->channels; c++) {
    first[c] = second[c] = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
      first[c] += partial[(piece * n->channels + c) * 2];
      second[c] += partial[(piece * n->channels + c) * 2 + 1];
    }
  }
  free(partial);
}

/* y = a x + b by channel, rectified if wanted. */
static void NAME(affine)(const extent *n, const float *x, const float *a, const float *b, float *y, int rectify) {
  const int64_t L = n->lanes, rows = n->blocks * n->positions;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < n->channels; c++) {
      const int64_t at = (r * n->channels + c) * L;
      const vf slope = NAME(all)(a[c]), level = NAME(all)(b[c]);
      for (int64_t l = 0; l < L; l += WIDTH) {
        vf out = NAME(load)(x + at + l) * slope + level;
        if (rectify) out = (vf)((vi)out & (vi)(out > 0.0f));
        NAME(store)(y + at + l, out);
      }
    }
}

/* dx = a dy - b - c (x - mean) by channel, where the rectifier let through. */
static void NAME(norm_backward)(const extent *n, const float *x, const float *g, const float *y, const float *mean,
                                const float *a, const float *b, const float *c, float *dx) {
  const int64_t L = n->lanes, rows = n->blocks * n->positions;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const int64_t valid = n->batch - r / n->positions * L;
    for (int64_t k = 0; k < n->channels; k++) {
      const int64_t at = (r * n->channels + k) * L;
      for (int64_t l = 0; l < L; l += WIDTH) {
        vf dy = NAME(load)(g + at + l);
        if (y) dy = (vf)((vi)dy & (vi)(NAME(load)(y + at + l) > 0.0f));
        const vf out = dy * a[k] - b[k] - (NAME(load)(x + at + l) - mean[k]) * c[k];
        NAME(store)(dx + at + l, NAME(lanes_of)(out, l, valid));
      }
    }
  }
}
