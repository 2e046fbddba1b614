/* Means and variances of Gaussians behind a rectifier and a maximum (Clark, 1961), which `predict(estimator="moments")` carries
 * through a network: in one pass over memory, where the same from torch's functions makes a dozen.
 *
 * Activations are planes (batch x channels) of positions. A factor and a shift by channel, of a normalisation that comes before,
 * are applied as numbers are read. */

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
static inline void NAME(larger)(vf *m, vf *v, vf m2, vf v2, float r) {
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

/* Elements [from, to) of all, with a normalisation and another term, to m and v; their variances summed by plane. */
static void NAME(read_planes)(const planes *n, int64_t from, int64_t to, const terms *x, float *m, float *v, float *sums) {
  for (int64_t at = from; at < to;) {
    const int64_t plane = at / n->positions, stop = (plane + 1) * n->positions, end = stop < to ? stop : to;
    const float f = x->factor ? x->factor[plane % n->channels] : 1.0f, b = x->shift ? x->shift[plane % n->channels] : 0.0f;
    float *mp = m - from, *vp = v - from, first = 0.0f, second = 0.0f;
#pragma omp simd reduction(+ : first)
    for (int64_t i = at; i < end; i++) {
      mp[i] = x->mean[i] * f + b;
      vp[i] = x->variance[i] * (f * f);
      first += vp[i];
    }
    if (x->other_mean)
#pragma omp simd reduction(+ : second)
      for (int64_t i = at; i < end; i++) {
        mp[i] += x->other_mean[i];
        vp[i] += x->other_variance[i];
        second += x->other_variance[i];
      }
    if (sums) {
      sums[4 * plane] += first;
      sums[4 * plane + 1] += second;
    }
    at = end;
  }
}

/* What is summed by plane: the variance of x, of the other term, what a linear function of the same mean derivative would make
 * of both, and the variance of the result. */
static void NAME(rectify)(const planes *n, const terms *x, float slope, float *y, float *v, float *sums) {
  const int64_t together = n->positions < CHUNK ? CHUNK / n->positions : 1, tasks = (n->count + together - 1) / together;
#pragma omp parallel for schedule(static) if (tasks > 8)
  for (int64_t task = 0; task < tasks; task++) {
    float m_at[CHUNK], v_at[CHUNK], first[CHUNK];
    const int64_t last = (task + 1) * together < n->count ? (task + 1) * together : n->count;
    const int64_t stop = last * n->positions;
    for (int64_t p = task * together; sums && p < last; p++) memset(sums + 4 * p, 0, 4 * sizeof(float));
    for (int64_t from = task * together * n->positions; from < stop; from += CHUNK) {
      const int64_t to = from + CHUNK < stop ? from + CHUNK : stop, size = to - from;
      NAME(read_planes)(n, from, to, x, m_at, v_at, sums);
      for (int64_t i = size; i < (size + WIDTH - 1) / WIDTH * WIDTH; i++) m_at[i] = v_at[i] = 0.0f;
      for (int64_t i = 0; i < size; i += WIDTH) {
        vf mean = NAME(load)(m_at + i), variance = NAME(load)(v_at + i);
        const vf before = variance, gain = NAME(rectified_moments)(&mean, &variance, slope);
        NAME(store)(m_at + i, mean);
        NAME(store)(v_at + i, variance);
        NAME(store)(first + i, gain * gain * before);
      }
      memcpy(y + from, m_at, sizeof(float) * (size_t)size);
      memcpy(v + from, v_at, sizeof(float) * (size_t)size);
      for (int64_t at = from; sums && at < to;) {
        const int64_t plane = at / n->positions, ends = (plane + 1) * n->positions, end = ends < to ? ends : to;
        float linear = 0.0f, whole = 0.0f;
#pragma omp simd reduction(+ : linear, whole)
        for (int64_t i = at - from; i < end - from; i++) {
          linear += first[i];
          whole += v_at[i];
        }
        sums[4 * plane + 2] += linear;
        sums[4 * plane + 3] += whole;
        at = end;
      }
    }
  }
}

/* The larger of `size` pairs, which lie side by side, into the place of the first. */
static inline void NAME(larger_of)(float *m, float *v, const float *m2, const float *v2, int64_t size, float r) {
  for (int64_t i = 0; i < size; i += WIDTH) {
    vf mean = NAME(load)(m + i), variance = NAME(load)(v + i);
    NAME(larger)(&mean, &variance, NAME(load)(m2 + i), NAME(load)(v2 + i), r);
    NAME(store)(m + i, mean);
    NAME(store)(v + i, variance);
  }
}

/* Maxima over windows, along rows and then down columns. r: the correlation of neighbours, by plane (or NULL). work: of a thread,
 * six strips of `room` floats each, a multiple of every vector's. */
static void NAME(pool_moments)(const windows *s, const terms *x, const float *r, float *y, float *v, pieces work, int64_t room) {
#pragma omp parallel for schedule(static) if (s->n.count > 8)
  for (int64_t plane = 0; plane < s->n.count; plane++) {
    float *rows_m = own(work), *rows_v = rows_m + room, *m_at = rows_v + room, *v_at = m_at + room, *m2 = v_at + room;
    float *v2 = m2 + room;
    const float *mean = x->mean + plane * s->n.positions, *variance = x->variance + plane * s->n.positions;
    const int64_t c = plane % s->n.channels, out = s->rows.out * s->columns.out;
    const float f = x->factor ? x->factor[c] : 1.0f, b = x->shift ? x->shift[c] : 0.0f, near = r ? r[plane] : 0.0f;
    const axis rows = s->rows, cols = s->columns;
    for (int64_t k = 0; k < cols.kernel; k++) {
      float *to = k ? m2 : rows_m, *to2 = k ? v2 : rows_v;
      const int64_t start = k * cols.dilation - cols.padding;
      for (int64_t i = 0; i < rows.size; i++)
        for (int64_t j = 0; j < cols.out; j++) {
          const int64_t at = start + j * cols.stride;
          const int is_inside = at >= 0 && at < cols.size;
          to[i * cols.out + j] = is_inside ? mean[i * cols.size + at] * f + b : LOWEST;
          to2[i * cols.out + j] = is_inside ? variance[i * cols.size + at] * (f * f) : 0.0f;
        }
      if (k) NAME(larger_of)(rows_m, rows_v, m2, v2, rows.size * cols.out, near);
    }
    for (int64_t k = 0; k < rows.kernel; k++) {
      float *to = k ? m2 : m_at, *to2 = k ? v2 : v_at;
      for (int64_t i = 0; i < rows.out; i++) {
        const int64_t at = k * rows.dilation - rows.padding + i * rows.stride;
        const int is_inside = at >= 0 && at < rows.size;
        for (int64_t j = 0; j < cols.out; j++) {
          to[i * cols.out + j] = is_inside ? rows_m[at * cols.out + j] : LOWEST;
          to2[i * cols.out + j] = is_inside ? rows_v[at * cols.out + j] : 0.0f;
        }
      }
      if (k) NAME(larger_of)(m_at, v_at, m2, v2, out, near);
    }
    memcpy(y + plane * out, m_at, sizeof(float) * (size_t)out);
    memcpy(v + plane * out, v_at, sizeof(float) * (size_t)out);
  }
}

/* What the variance of a convolution's output is made of, E[x^2] and v (1 - near), the latter without what neighbours vary
 * together; and averages over the positions of a plane: of m, m^2, v, and of m(p) m(q) for q `step` behind p in a row of `width`.
 * beside: whether the two are neighbours in each datum (batch, 2, channels, ...) or all of one come first. */
static void NAME(spread)(const planes *n, int64_t width, int64_t step, const float *mean, const float *variance,
                         const float *near, int beside, float *both, float *averages) {
  const int64_t size = n->positions, pairs = width > step ? size / width * (width - step) : 0;
#pragma omp parallel for schedule(static) if (n->count * size > 1 << 14)
  for (int64_t plane = 0; plane < n->count; plane++) {
    const float *m = mean + plane * size, *v = variance + plane * size, rest = near ? 1.0f - near[plane] : 1.0f;
    const int64_t datum = plane / n->channels, to = beside ? plane + datum * n->channels : plane;
    float *square = both + to * size, *own_part = square + (beside ? n->channels : n->count) * size;
    float first = 0.0f, second = 0.0f, third = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : first, second, third)
    for (int64_t i = 0; i < size; i++) {
      const float power = m[i] * m[i];
      square[i] = power + v[i];
      own_part[i] = v[i] * rest;
      first += m[i];
      second += power;
      third += v[i];
    }
    for (int64_t row = 0; pairs && row < size; row += width)
#pragma omp simd reduction(+ : product)
      for (int64_t i = row; i < row + width - step; i++) product += m[i] * m[i + step];
    const float share = 1.0f / (float)size, average = first * share;
    averages[plane] = average;
    averages[plane + n->count] = second * share;
    averages[plane + 2 * n->count] = third * share;
    averages[plane + 3 * n->count] = pairs ? product / (float)pairs : average * average;
  }
}
