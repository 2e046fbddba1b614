/* Max pooling of a blocked activation, with a rectifier behind it if wanted (the same as one before it). Which tap of a window
 * won is kept in a byte, -1 where the rectifier lets nothing pass. */

typedef int8_t NAME(vb) __attribute__((vector_size(WIDTH), aligned(1), may_alias));

static void NAME(pool)(const geometry *s, const float *x, float *y, int8_t *won, int rectify) {
  const int64_t line = (int64_t)s->inputs * LANES;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t block = 0; block < s->blocks; block++)
    for (int oh = 0; oh < s->oh; oh++)
      for (int ow = 0; ow < s->ow; ow++) {
        const int ih = oh * s->sh - s->ph, iw = ow * s->sw - s->pw;
        const span r = inside(ih, s->h, s->kh), c = inside(iw, s->w, s->kw);
        const float *xp = x + ((block * s->h + ih) * s->w + iw) * line;
        const int64_t yp = ((block * s->oh + oh) * s->ow + ow) * line;
        for (int64_t i = 0; i < line; i += WIDTH) {
          vf best = NAME(load)(xp + (r.from * s->w + c.from) * line + i);
          vi where = (vi){0} + (r.from * s->kw + c.from);
          for (int a = r.from; a < r.to; a++)
            for (int b = c.from; b < c.to; b++) {
              const vf here = NAME(load)(xp + (a * s->w + b) * line + i);
              const vi more = (here > best) | (here != here); /* as torch: the first of equals, and NaN wins */
              best = NAME(pick)(more, here, best);
              where = (more & (a * s->kw + b)) | (~more & where);
            }
          if (rectify) {
            where |= best <= 0.0f;
            best = NAME(rectified)(best);
          }
          NAME(store)(y + yp + i, best);
          if (won) *(NAME(vb) *)(won + yp + i) = __builtin_convertvector(where, NAME(vb));
        }
      }
}

static void NAME(pool_backward)(const geometry *s, const float *g, const int8_t *won, float *dx) {
  const int64_t line = (int64_t)s->inputs * LANES, size = s->h * s->w * line;
  /* windows that are neighbours write every place once */
  const int once = s->sh == s->kh && s->sw == s->kw && s->oh * s->kh == s->h && s->ow * s->kw == s->w && !s->ph && !s->pw;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < s->blocks; block++) {
    if (!once) memset(dx + block * size, 0, sizeof(float) * size);
    for (int oh = 0; oh < s->oh; oh++)
      for (int ow = 0; ow < s->ow; ow++) {
        const int ih = oh * s->sh - s->ph, iw = ow * s->sw - s->pw;
        const span r = inside(ih, s->h, s->kh), c = inside(iw, s->w, s->kw);
        float *xp = dx + block * size + ((int64_t)ih * s->w + iw) * line;
        const int64_t yp = ((block * s->oh + oh) * s->ow + ow) * line;
        for (int64_t i = 0; i < line; i += WIDTH) {
          const vf here = NAME(load)(g + yp + i);
          const vi where = __builtin_convertvector(*(const NAME(vb) *)(won + yp + i), vi);
          for (int a = r.from; a < r.to; a++)
            for (int b = c.from; b < c.to; b++) {
              float *at = xp + (a * s->w + b) * line + i;
              const vf share = NAME(where)(where == a * s->kw + b, here);
              if (once) NAME(store)(at, share);
              else NAME(store)(at, NAME(load)(at) + share);
            }
        }
      }
  }
}
