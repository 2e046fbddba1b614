/* Means and variances of Gaussians behind a rectifier and a maximum (Clark, 1961), which `predict(estimator="moments")` carries
 * through a network: in one pass over memory, where the same from torch's functions makes a dozen.
 *
 * Activations are images: data, positions, channels, the channels side by side (torch's channels-last order). A factor and a shift
 * by channel, of a normalisation that comes before, are applied as numbers are read. Sums over positions are by datum and channel. */

/* e^x for -40 <= x <= 0, to 2e-7 of itself (Cephes). */
static inline vf NAME(exponential)(vf x) {
  const vf shifted = x * 1.44269504089f + 12582912.0f; /* 1.5 2^23: what is added to it is rounded */
  const vf n = shifted - 12582912.0f, r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vf p = NAME(all)(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
  return (p * r * r + r + 1.0f) * (vf)((((vi)shifted - 0x4b400000) + 127) << 23);
}

/* Phi(-t), returned, and E max(z - t, 0) = phi(t) - t Phi(-t), for 0 <= t <= 8: within 3e-7. With Mills' ratio Phi(-t) / phi(t)
 * as a polynomial in 1 / (1 + 0.4 t), fitted at Chebyshev's nodes: to 4e-7 of itself. */
static inline vf NAME(tail)(vf t, vf *g) {
  const vf u = 1.0f / (1.0f + 0.4f * t), density = 0.398942280f * NAME(exponential)(t * t * -0.5f);
  vf p = NAME(all)(-0.0962135997f);
  p = p * u + 0.487359427f; p = p * u - 0.903392931f; p = p * u + 0.589487001f; p = p * u - 0.0026055078f;
  p = p * u + 0.384497636f; p = p * u + 0.393851494f; p = p * u + 0.400330561f;
  const vf mills = p * u;
  *g = density * (1.0f - t * mills);
  return density * mills;
}

static inline vf NAME(size_of)(vf a) { return (vf)((vi)a & 0x7fffffff); }
static inline vf NAME(signed_as)(vf a, vf sign) { return (vf)((vi)a | ((vi)sign & (vi)NAME(all)(-0.0f))); } /* a >= 0 */
static inline vf NAME(at_least)(vf a, float low) { return NAME(pick)(a <= low, NAME(all)(low), a); } /* NaN stays */
static inline vf NAME(at_most)(vf a, float high) { return NAME(pick)(a >= high, NAME(all)(high), a); }

/* max(x, 0) + slope min(x, 0) of x ~ N(*m, *v), in their place; returns the mean derivative. */
static inline vf NAME(rectified_moments)(vf *m, vf *v, float slope) {
  const vf v0 = NAME(at_least)(*v, 1e-30f), inverse = NAME(inverse_root)(v0), s = v0 * inverse;
  vf g;
  const vf below = NAME(tail)(NAME(at_most)(NAME(size_of)(*m) * inverse, 8.0f), &g);
  g *= s;
  const vf positive = NAME(rectified)(*m) + g, negative = NAME(rectified)(-*m) + g;
  const vf gain = 0.5f + NAME(signed_as)(NAME(at_least)(0.5f - below, 0.0f), *m);
  const vf variance = v0 * gain - positive * negative;
  const float keep = 1.0f - slope;
  *m = positive - slope * negative;
  *v = NAME(at_least)(slope * slope * v0 + keep * keep * variance + 2.0f * slope * keep * v0 * gain, 0.0f);
  return slope + keep * gain;
}

/* The larger of two Gaussians whose correlation is r, into the first one's place. */
static inline void NAME(larger)(vf *m, vf *v, vf m2, vf v2, vf r) {
  const vf both = NAME(at_least)(*v * v2, 0.0f), root = both * NAME(inverse_root)(both);
  const vf spread = NAME(at_least)(*v + v2 - 2.0f * r * root, 1e-30f), inverse = NAME(inverse_root)(spread);
  const vf a = spread * inverse, ahead = *m - m2, t = NAME(at_most)(NAME(size_of)(ahead) * inverse, 8.0f);
  vf g;
  const vf below = NAME(tail)(t, &g);
  g *= a;
  const vf beaten = 0.5f - NAME(signed_as)(NAME(at_least)(0.5f - below, 0.0f), ahead);
  *m = NAME(pick)(*m >= m2, *m, m2) + g;
  *v = NAME(at_least)(*v + (v2 - *v) * beaten - (t * a + g) * g, 0.0f);
}

/* The first `count` of the numbers at p, zeros behind. */
static inline vf NAME(first_of)(const float *p, int64_t count) {
  vf v = {0};
  for (int64_t i = 0; i < count; i++) v[i] = p[i];
  return v;
}

/* The larger of `size` pairs, which lie side by side, into the place of the first. near: their correlations. Up to WIDTH - 1
 * numbers behind them are written too. */
static inline void NAME(larger_of)(float *m, float *v, const float *m2, const float *v2, int64_t size, const float *near) {
  for (int64_t i = 0; i < size; i += WIDTH) {
    vf mean = NAME(load)(m + i), variance = NAME(load)(v + i);
    NAME(larger)(&mean, &variance, NAME(load)(m2 + i), NAME(load)(v2 + i), NAME(load)(near + i));
    NAME(store)(m + i, mean);
    NAME(store)(v + i, variance);
  }
}

/* y[i] += x[i], ..., for `rows` rows of x. */
static inline void NAME(sum_rows)(float *y, const float *x, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; r++)
#pragma omp simd
    for (int64_t i = 0; i < size; i++) y[i] += x[r * size + i];
}

/* Mean and variance of a normalised sum behind a rectifier. sums, four arrays [data][channels]: the variance of x, of the other
 * term, what a linear function of the same mean derivative would make of both, and the variance of the result. */
static void NAME(rectify)(const images *n, const terms *x, float slope, float *y, float *v, float *sums) {
  const int64_t channels = n->channels, apart = n->data * channels;
#pragma omp parallel for schedule(static) if (n->data * n->positions * channels > 1 << 13)
  for (int64_t datum = 0; datum < n->data; datum++)
    for (int64_t c0 = 0; c0 < channels; c0 += CHUNK) {
      const int64_t wide = channels - c0 < CHUNK ? channels - c0 : CHUNK, most = wide == channels ? CHUNK / channels : 1;
      float factor[CHUNK], square[CHUNK], shift[CHUNK], parts[4][CHUNK], m_at[CHUNK], v_at[CHUNK], total[4][CHUNK];
      for (int64_t i = 0; i < (most * wide + WIDTH - 1) / WIDTH * WIDTH; i++) {
        const int64_t c = c0 + i % wide;
        factor[i] = x->factor ? x->factor[c] : 1.0f;
        shift[i] = x->shift ? x->shift[c] : 0.0f;
        square[i] = factor[i] * factor[i];
      }
      if (sums) memset(total, 0, sizeof total);
      for (int64_t p = 0; p < n->positions; p += most) {
        const int64_t rows = n->positions - p < most ? n->positions - p : most, size = rows * wide, whole = size / WIDTH * WIDTH;
        const int64_t at = (datum * n->positions + p) * channels + c0;
        for (int64_t i = 0; i < size; i += WIDTH) {
          const int64_t left = size - i < WIDTH ? size - i : WIDTH, j = at + i;
          vf mean, variance, second = {0};
          if (i < whole) mean = NAME(load)(x->mean + j), variance = NAME(load)(x->variance + j);
          else mean = NAME(first_of)(x->mean + j, left), variance = NAME(first_of)(x->variance + j, left);
          mean = mean * NAME(load)(factor + i) + NAME(load)(shift + i);
          variance *= NAME(load)(square + i);
          if (sums) NAME(store)(parts[0] + i, variance);
          if (x->other_mean) {
            mean += i < whole ? NAME(load)(x->other_mean + j) : NAME(first_of)(x->other_mean + j, left);
            second = i < whole ? NAME(load)(x->other_variance + j) : NAME(first_of)(x->other_variance + j, left);
            variance += second;
          }
          const vf before = variance, gain = NAME(rectified_moments)(&mean, &variance, slope);
          if (sums) {
            NAME(store)(parts[1] + i, second);
            NAME(store)(parts[2] + i, gain * gain * before);
            NAME(store)(parts[3] + i, variance);
          }
          if (i < whole) {
            NAME(store)(y + j, mean);
            NAME(store)(v + j, variance);
          } else {
            NAME(store)(m_at, mean);
            NAME(store)(v_at, variance);
            memcpy(y + j, m_at, sizeof(float) * (size_t)left);
            memcpy(v + j, v_at, sizeof(float) * (size_t)left);
          }
        }
        for (int k = 0; sums && k < 4; k++)
          if (k != 1 || x->other_mean) NAME(sum_rows)(total[k], parts[k], rows, wide);
      }
      for (int k = 0; sums && k < 4; k++)
        memcpy(sums + k * apart + datum * channels + c0, total[k], sizeof(float) * (size_t)wide);
    }
}

/* Maxima over windows, along rows and then down columns. near: the correlation of neighbours, [data][channels] (or NULL). work: of a
 * thread, four strips of `room` floats each and three of `line`, multiples of every vector's. */
static void NAME(pool_moments)(const windows *s, const terms *x, const float *near, float *y, float *v, pieces work, int64_t room,
                               int64_t line) {
  const int64_t channels = s->n.channels;
  const axis rows = s->rows, cols = s->columns;
#pragma omp parallel for schedule(static) if (s->n.data > 1)
  for (int64_t datum = 0; datum < s->n.data; datum++) {
    float *rows_m = own(work), *rows_v = rows_m + room, *m_at = rows_v + room, *v_at = m_at + room;
    float *m2 = v_at + room, *v2 = m2 + line, *r = v2 + line;
    const float *mean = x->mean + datum * s->n.positions * channels, *variance = x->variance + datum * s->n.positions * channels;
    const int64_t width = cols.out * channels;
    for (int64_t j = 0; j < line; j++) r[j] = near && j < width ? near[datum * channels + j % channels] : 0.0f;
    for (int64_t i = 0; i < rows.size; i++)
      for (int64_t k = 0; k < cols.kernel; k++) {
        float *to = k ? m2 : rows_m + i * width, *to2 = k ? v2 : rows_v + i * width;
        for (int64_t j = 0; j < cols.out; j++) {
          const int64_t at = k * cols.dilation - cols.padding + j * cols.stride;
          const int is_inside = at >= 0 && at < cols.size;
          const float *from = mean + (i * cols.size + (is_inside ? at : 0)) * channels, *from2 = variance + (from - mean);
          for (int64_t c = 0; c < channels; c++) {
            const float f = x->factor ? x->factor[c] : 1.0f, b = x->shift ? x->shift[c] : 0.0f;
            to[j * channels + c] = is_inside ? from[c] * f + b : LOWEST;
            to2[j * channels + c] = is_inside ? from2[c] * (f * f) : 0.0f;
          }
        }
        if (k) NAME(larger_of)(rows_m + i * width, rows_v + i * width, m2, v2, width, r);
      }
    for (int64_t i = 0; i < rows.out; i++) {
      float *to = m_at + i * width, *to2 = v_at + i * width;
      int any = 0;
      for (int64_t k = 0; k < rows.kernel; k++) {
        const int64_t at = k * rows.dilation - rows.padding + i * rows.stride;
        if (at < 0 || at >= rows.size) continue;
        if (any) NAME(larger_of)(to, to2, rows_m + at * width, rows_v + at * width, width, r);
        else memcpy(to, rows_m + at * width, sizeof(float) * (size_t)width), memcpy(to2, rows_v + at * width, sizeof(float) * (size_t)width);
        any = 1;
      }
      for (int64_t j = 0; !any && j < width; j++) to[j] = LOWEST, to2[j] = 0.0f;
    }
    memcpy(y + datum * rows.out * width, m_at, sizeof(float) * (size_t)(rows.out * width));
    memcpy(v + datum * rows.out * width, v_at, sizeof(float) * (size_t)(rows.out * width));
  }
}

/* What the variance of a convolution's output is made of, E[x^2] and v (1 - near), the latter without what neighbours vary
 * together; and averages over positions, four arrays [data][channels]: of m, m^2, v, and of m(p) m(q) for q `step` behind p in a row
 * of `width`. near: [data][channels], or NULL. beside: whether the two are channels of one image or all of one come first. */
static void NAME(spread)(const images *n, int64_t width, int64_t step, const float *mean, const float *variance, const float *near,
                         int beside, float *both, float *averages) {
  const int64_t channels = n->channels, all = n->data * n->positions * channels, apart = n->data * channels;
  const int64_t pairs = width > step ? n->positions / width * (width - step) : 0;
#pragma omp parallel for schedule(static) if (all > 1 << 14)
  for (int64_t datum = 0; datum < n->data; datum++)
    for (int64_t c0 = 0; c0 < channels; c0 += CHUNK) {
      const int64_t wide = channels - c0 < CHUNK ? channels - c0 : CHUNK;
      float total[4][CHUNK], rest[CHUNK];
      memset(total, 0, sizeof total);
      for (int64_t c = 0; c < wide; c++) rest[c] = near ? 1.0f - near[datum * channels + c0 + c] : 1.0f;
      for (int64_t p = 0; p < n->positions; p++) {
        const int64_t at = (datum * n->positions + p) * channels + c0;
        const float *m = mean + at, *v = variance + at, *m2 = m + step * channels;
        float *square = both + (beside ? 2 * at - c0 : at), *left = square + (beside ? channels : all);
#pragma omp simd
        for (int64_t c = 0; c < wide; c++) {
          const float power = m[c] * m[c];
          square[c] = power + v[c];
          left[c] = v[c] * rest[c];
          total[0][c] += m[c];
          total[1][c] += power;
          total[2][c] += v[c];
        }
        if (pairs && p % width < width - step)
#pragma omp simd
          for (int64_t c = 0; c < wide; c++) total[3][c] += m[c] * m2[c];
      }
      const float share = 1.0f / (float)n->positions;
      for (int64_t c = 0; c < wide; c++) {
        float *to = averages + datum * channels + c0 + c;
        to[0] = total[0][c] * share;
        to[apart] = total[1][c] * share;
        to[2 * apart] = total[2][c] * share;
        to[3 * apart] = pairs ? total[3][c] / (float)pairs : to[0] * to[0];
      }
    }
}
