/* The KL of Gaussian weights, summed by rows, and its gradient: one pass over memory each. */

/* e^x, kept between e^-87 and e^88. NaN stays. */
static inline vf NAME(power)(vf x) {
  x = NAME(pick)(x < -87.0f, NAME(all)(-87.0f), x);
  return NAME(exponential)(NAME(pick)(x > 88.0f, NAME(all)(88.0f), x));
}

/* log(x) of normal numbers above 0; Cephes. */
static inline vf NAME(logarithm)(vf x) {
  const vi e = ((vi)x - 0x3f3504f3) >> 23;
  const vf f = (vf)((vu)x - ((vu)e << 23)) - 1.0f, f2 = f * f, n = __builtin_convertvector(e, vf);
  vf p = NAME(all)(7.0376836292e-2f);
  p = p * f - 1.1514610310e-1f; p = p * f + 1.1676998740e-1f; p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f; p = p * f - 1.6668057665e-1f; p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f; p = p * f + 3.3333331174e-1f;
  return (p * f * f2 - n * 2.12194440e-4f) - 0.5f * f2 + f + n * 0.693359375f;
}

/* log(1 + exp(x)), and its derivative. */
static inline vf NAME(softplus)(vf x, vf *slope) {
  const vi above = x > 0.0f;
  const vf e = NAME(power)(NAME(pick)(above, -x, x)), u = 1.0f + e, inverse = 1.0f / u;
  *slope = NAME(pick)(above, inverse, e * inverse);
  const vf exact = u - 1.0f; /* what of e is in u: the quotient makes up for the rest */
  const vf log1p = NAME(pick)(exact == 0.0f, e, NAME(logarithm)(u) * e / exact);
  return NAME(where)(above, x) + log1p;
}

/* The KL against the log-uniform prior by log alpha, see posteriors/log_uniform.py; slope: its derivative. */
static inline vf NAME(curve)(int form, vf log_alpha, vf *slope) {
  vf share;
  if (form == KINGMA) {
    const vi below = log_alpha <= 0.0f;
    const vf low = NAME(pick)(log_alpha > 0.0f, NAME(all)(0.0f), log_alpha), a = NAME(power)(low);
    const float c1 = 1.16145124f, c2 = -1.50204118f, c3 = 0.58629921f;
    *slope = NAME(where)(below, -0.5f - a * (c1 + a * (2.0f * c2 + a * (3.0f * c3))));
    return 0.63518142f - 0.5f * low - a * (c1 + a * (c2 + a * c3));
  }
  const vf half = 0.5f * NAME(softplus)(-log_alpha, &share);
  if (form == CUI) {
    const vf at = -0.2041f + 0.3492f * log_alpha, bump = 0.7294f * NAME(power)(-1.71377750f * at * at);
    *slope = bump * at * (2.0f * 1.71377750f * 0.3492f) - 0.5f * share;
    return half - bump;
  }
  vf sigmoid;
  NAME(softplus)(-(1.87320f + 1.48695f * log_alpha), &sigmoid);
  *slope = sigmoid * (sigmoid - 1.0f) * (0.63576f * 1.48695f) - 0.5f * share;
  return 0.63576f * sigmoid + half;
}

/* The KL of WIDTH weights, and its derivatives in their mean and scale. */
static inline vf NAME(divergence)(const law *l, vf mean, vf scale, vf *by_mean, vf *by_scale) {
  vf std_slope, slope;
  if (l->form != NORMAL && l->multiplicative) {
    *by_mean = NAME(all)(0.0f);
    return NAME(curve)(l->form, scale, by_scale);
  }
  const vf std = NAME(softplus)(scale, &std_slope);
  if (l->form == NORMAL) {
    vf ratio = std * l->inverse;
    const vi tiny = ratio < 0x1p-126f;
    ratio = NAME(pick)(tiny, NAME(all)(0x1p-126f), ratio);
    const vf z = (mean - l->centre) * l->inverse;
    *by_mean = z * l->inverse;
    *by_scale = NAME(unless)(tiny, (ratio - 1.0f / ratio) * l->inverse * std_slope);
    return 0.5f * (ratio * ratio - 1.0f + z * z) - NAME(logarithm)(ratio);
  }
  const vf size = (vf)((vu)mean & 0x7fffffffu), signal = size / std;
  const vi lost = signal < 1e-18f;
  const vf value = NAME(curve)(l->form, -2.0f * NAME(logarithm)(NAME(pick)(lost, NAME(all)(1e-18f), signal)), &slope);
  *by_mean = NAME(unless)(lost, -2.0f * slope / mean);
  *by_scale = NAME(unless)(lost, 2.0f * slope * std_slope / std);
  return value;
}

/* Up to WIDTH numbers; zeros behind them, and where there are none at all. */
static inline vf NAME(some)(const float *p, int64_t count) {
  if (!p) return NAME(all)(0.0f);
  if (count >= WIDTH) return NAME(load)(p);
  float at[WIDTH] = {0};
  memcpy(at, p, sizeof(float) * (size_t)count);
  return NAME(load)(at);
}

static inline void NAME(put)(float *p, vf v, int64_t count) {
  if (!p) return;
  if (count >= WIDTH) { NAME(store)(p, v); return; }
  float at[WIDTH];
  NAME(store)(at, v);
  memcpy(p, at, sizeof(float) * (size_t)count);
}

/* Rows are cut into stretches, whose sums do not depend on the number of threads. */
static void NAME(divergences)(const law *l, const float *mean, const float *scale, double *partial) {
  const int64_t each = stretches(l->length);
#pragma omp parallel for schedule(static) if (l->rows * l->length > STRETCH)
  for (int64_t s = 0; s < l->rows * each; s++) {
    const int64_t from = s / each * l->length + s % each * STRETCH, left = (s / each + 1) * l->length - from;
    const int64_t to = from + (left < STRETCH ? left : STRETCH);
    double total = 0.0;
    for (int64_t i = from; i < to;) { /* few enough numbers at a time for single precision */
      vf sum = NAME(all)(0.0f), ignored;
      for (int k = 0; k < 32 && i < to; k++, i += WIDTH) {
        const vf value = NAME(divergence)(l, NAME(some)(mean ? mean + i : NULL, to - i), NAME(some)(scale + i, to - i), &ignored, &ignored);
        sum += NAME(lanes_of)(value, 0, to - i);
      }
      for (int k = 0; k < WIDTH; k++) total += sum[k];
    }
    partial[s] = total;
  }
}

static void NAME(divergence_slopes)(const law *l, const float *mean, const float *scale, const float *g, float *dmean, float *dscale) {
  const int64_t each = stretches(l->length);
#pragma omp parallel for schedule(static) if (l->rows * l->length > STRETCH)
  for (int64_t s = 0; s < l->rows * each; s++) {
    const int64_t from = s / each * l->length + s % each * STRETCH, left = (s / each + 1) * l->length - from;
    const int64_t to = from + (left < STRETCH ? left : STRETCH);
    for (int64_t i = from; i < to; i += WIDTH) {
      vf by_mean, by_scale;
      NAME(divergence)(l, NAME(some)(mean ? mean + i : NULL, to - i), NAME(some)(scale + i, to - i), &by_mean, &by_scale);
      NAME(put)(dmean ? dmean + i : NULL, g[s / each] * by_mean, to - i);
      NAME(put)(dscale ? dscale + i : NULL, g[s / each] * by_scale, to - i);
    }
  }
}
