/* The functions that Python calls: each reads its arguments, which checks them, and starts the kernel of the instruction set. */

/* shape, rows, offsets, slots, mu, sigma, bias, x, eps, y, slope, seed, mode: y, and for the backward pass slope =
 * eps / (2 sqrt(v)). sigma is absent for MEAN, eps there for GIVEN only; bias may be absent. */
int64_t leanbayes_forward(const argument *list, int64_t length) {
  call c = opened(list, length);
  geometry s;
  plan p;
  if (!described(&c, &s) || !planned(&c, &s, 0, &p)) return c.error;
  const float *mu = floats(&c, p.count), *sigma = floats_or_null(&c, p.count), *bias = floats_or_null(&c, s.outputs);
  const float *x = floats(&c, inputs_of(&s)), *eps = floats_or_null(&c, outputs_of(&s));
  float *y = floats(&c, outputs_of(&s)), *slope = floats(&c, sigma ? outputs_of(&s) : 0);
  const uint64_t seed = (uint64_t)integer(&c, INT64_MIN, INT64_MAX);
  const int mode = (int)integer(&c, sigma ? NOISE : MEAN, !sigma ? MEAN : eps ? GIVEN : NOISE);
  if (!complete(&c)) return c.error;
  return CALL(forward, &c, &s, &p, mu, sigma, bias, x, eps, y, slope, seed, mode);
}

/* shape, rows, offsets, slots, mu, sigma, x, g, out, y, slope, line, rectified, dx, dmu, dsigma, dbias: gradients of x, mu,
 * sigma and bias, each absent where not wanted. g, out, y, slope, line, rectified: see upstream. */
int64_t leanbayes_backward(const argument *list, int64_t length) {
  call c = opened(list, length);
  geometry s;
  plan p;
  if (!described(&c, &s) || !planned(&c, &s, 1, &p)) return c.error;
  const int64_t outputs = outputs_of(&s);
  const float *mu = floats(&c, p.count), *sigma = floats_or_null(&c, p.count), *x = floats(&c, inputs_of(&s));
  const float *g = floats(&c, outputs), *out = floats_or_null(&c, outputs), *y = floats_or_null(&c, outputs);
  const float *slope = floats(&c, sigma ? outputs : 0), *line = floats_or_null(&c, 6 * (int64_t)s.outputs);
  if (line && !y) refuse(&c, KIND);
  const upstream u = {g, out, y, sigma ? slope : NULL, line, (int)integer(&c, 0, 1)};
  float *dx = floats_or_null(&c, inputs_of(&s)), *dmu = floats_or_null(&c, p.count);
  float *dsigma = floats_or_null(&c, p.count);
  if (!dsigma != !(dmu && sigma)) refuse(&c, KIND); /* they are computed together */
  float *dbias = floats_or_null(&c, s.outputs);
  if (!complete(&c)) return c.error;
  const int64_t status = CALL(backward, &c, &s, &p, mu, sigma, x, &u, dx, dmu, dsigma, dbias);
  if (!status && dsigma)
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < p.count; k++) dsigma[k] *= 2.0f * sigma[k];
  return status;
}

/* sizes, x, mean, variance: the mean and biased variance by channel. */
int64_t leanbayes_moments(const argument *list, int64_t length) {
  call c = opened(list, length);
  extent n;
  if (!extended(&c, &n)) return c.error;
  if (n.batch < 1) refuse(&c, SHAPE);
  const float *x = floats(&c, elements_of(&n));
  float *mean = floats(&c, n.channels), *variance = floats(&c, n.channels);
  if (!complete(&c)) return c.error;
  const double count = (double)n.batch * (double)n.positions;
  double *sums = piece(&c, 4 * n.channels);
  /* sums about a datum of the channel, so that squares do not cancel */
  for (int64_t k = 0; k < n.channels; k++) mean[k] = x[k * LANES];
  const int64_t status = CALL(norm_sums, &c, &n, x, NULL, mean, NULL, sums);
  if (status) return status;
  for (int64_t k = 0; k < n.channels; k++) {
    const double m = sums[k] / count, v = sums[n.channels + k] / count - m * m;
    mean[k] = (float)(mean[k] + m);
    variance[k] = (float)(v > 0 ? v : 0);
  }
  return done(&c);
}

/* gamma (x - mean) / sqrt(variance + eps) + beta as scale x + level. */
static void leveled(int64_t c, const float *mean, const float *variance, const float *gamma, const float *beta, double eps,
                    float *scale, float *level) {
  const double slope = (gamma ? gamma[c] : 1.0) / __builtin_sqrt((double)variance[c] + eps);
  *scale = (float)slope;
  *level = (float)((beta ? beta[c] : 0.0) - slope * mean[c]);
}

/* sizes, x, mean, variance, gamma, beta, eps, other, y, rectify: y = gamma (x - mean) / sqrt(variance + eps) + beta (x itself
 * without a mean), plus `other` if any, rectified if wanted. */
int64_t leanbayes_finish(const argument *list, int64_t length) {
  call c = opened(list, length);
  extent n;
  if (!extended(&c, &n)) return c.error;
  const float *x = floats(&c, elements_of(&n)), *mean = floats_or_null(&c, n.channels);
  const float *variance = floats_or_null(&c, n.channels);
  if (!mean != !variance) refuse(&c, KIND);
  const float *gamma = floats_or_null(&c, n.channels), *beta = floats_or_null(&c, n.channels);
  const double eps = real(&c);
  const float *other = floats_or_null(&c, elements_of(&n));
  float *y = floats(&c, elements_of(&n));
  const int rectify = (int)integer(&c, 0, 1);
  if (!complete(&c)) return c.error;
  float *scale = piece(&c, n.channels), *level = piece(&c, n.channels);
  if (lacks(&c)) return needed(&c);
  for (int64_t k = 0; mean && k < n.channels; k++) leveled(k, mean, variance, gamma, beta, eps, scale + k, level + k);
  CALL(affine, &n, x, mean ? scale : NULL, level, other, y, rectify);
  return done(&c);
}

/* sizes, x, g, out, rectified, mean, variance, gamma, beta, eps, own, masked, line, dgamma, dbeta: gradients of gamma and
 * beta, and the line that gives that of x (see upstream). x: what was normalised, by its own moments if `own`. out: what came
 * out, where a sum was rectified; else absent. masked: the gradient behind the rectifier, if wanted. */
int64_t leanbayes_norm_gradients(const argument *list, int64_t length) {
  call c = opened(list, length);
  extent n;
  if (!extended(&c, &n)) return c.error;
  if (n.batch < 1) refuse(&c, SHAPE);
  const int64_t C = n.channels, all = elements_of(&n);
  const float *x = floats(&c, all), *g = floats(&c, all), *out = floats_or_null(&c, all);
  const int rectified = (int)integer(&c, 0, 1);
  const float *mean = floats(&c, C), *variance = floats(&c, C), *gamma = floats_or_null(&c, C);
  const float *beta = floats_or_null(&c, C);
  const double eps = real(&c);
  const int by_itself = (int)integer(&c, 0, 1);
  float *masked = floats_or_null(&c, all), *line = floats(&c, 6 * C), *dgamma = floats(&c, C), *dbeta = floats(&c, C);
  if (!complete(&c)) return c.error;
  const double count = (double)n.batch * (double)n.positions;
  double *sums = piece(&c, 4 * C);
  for (int64_t k = 0; k < C; k++) leveled(k, mean, variance, gamma, beta, eps, line + 4 * C + k, line + 5 * C + k);
  const upstream u = {g, out, x, NULL, line, rectified};
  const int64_t status = CALL(norm_sums, &c, &n, x, &u, mean, masked, sums);
  if (status) return status;
  for (int64_t k = 0; k < C; k++) {
    const double inverse = 1.0 / __builtin_sqrt((double)variance[k] + eps), slope = (gamma ? gamma[k] : 1.0) * inverse;
    dbeta[k] = (float)sums[k];
    dgamma[k] = (float)(sums[C + k] * inverse);
    line[k] = (float)slope;
    line[C + k] = by_itself ? (float)(slope * sums[k] / count) : 0.0f;
    line[2 * C + k] = by_itself ? (float)(slope * inverse * inverse * sums[C + k] / count) : 0.0f;
    line[3 * C + k] = mean[k];
  }
  return done(&c);
}

/* sizes, x, g, out, rectified, line, dx: the gradient of x from such a line. */
int64_t leanbayes_norm_input(const argument *list, int64_t length) {
  call c = opened(list, length);
  extent n;
  if (!extended(&c, &n)) return c.error;
  const int64_t all = elements_of(&n);
  const float *x = floats(&c, all), *g = floats(&c, all), *out = floats_or_null(&c, all);
  const int rectified = (int)integer(&c, 0, 1);
  const float *line = floats(&c, 6 * n.channels);
  float *dx = floats(&c, all);
  if (!complete(&c)) return c.error;
  const upstream u = {g, out, x, NULL, line, rectified};
  CALL(norm_input, &n, x, &u, dx);
  return done(&c);
}

/* Whether a geometry is one of max pooling: every window has a place inside the image, and a byte holds the number of it. */
static int pools(call *c, geometry *s) {
  if (!described(c, s)) return 0;
  if (s->inputs != s->outputs || s->kh * (int64_t)s->kw > INT8_MAX || 2 * s->ph > s->kh || 2 * s->pw > s->kw) refuse(c, SHAPE);
  return !c->error;
}

/* shape, x, y, won, rectify: max pooling, rectified if wanted. won: for the backward pass, or absent. */
int64_t leanbayes_pool(const argument *list, int64_t length) {
  call c = opened(list, length);
  geometry s;
  if (!pools(&c, &s)) return c.error;
  const float *x = floats(&c, inputs_of(&s));
  float *y = floats(&c, outputs_of(&s));
  int8_t *won = NULL;
  if (absent(&c)) c.at++;
  else won = elements(&c, INT8, outputs_of(&s));
  const int rectify = (int)integer(&c, 0, 1);
  if (!complete(&c)) return c.error;
  CALL(pool, &s, x, y, won, rectify);
  return done(&c);
}

/* shape, g, won, dx */
int64_t leanbayes_pool_backward(const argument *list, int64_t length) {
  call c = opened(list, length);
  geometry s;
  if (!pools(&c, &s)) return c.error;
  const float *g = floats(&c, outputs_of(&s));
  const int8_t *won = elements(&c, INT8, outputs_of(&s));
  float *dx = floats(&c, inputs_of(&s));
  if (!complete(&c)) return c.error;
  CALL(pool_backward, &s, g, won, dx);
  return done(&c);
}

/* mean, v, y, slope, seed: y = mean + sqrt(v) eps, and slope = d y / d v. */
int64_t leanbayes_perturb(const argument *list, int64_t length) {
  call c = opened(list, length);
  const int64_t count = next_count(&c);
  if (count > MOST) { c.at = 1; refuse(&c, LARGE); }
  const float *mean = floats(&c, count), *v = floats(&c, count);
  float *y = floats(&c, count), *slope = floats(&c, count);
  const uint64_t seed = (uint64_t)integer(&c, INT64_MIN, INT64_MAX);
  if (!complete(&c)) return c.error;
  CALL(perturb, mean, v, y, slope, count, seed);
  return done(&c);
}

/* shape, x, w, bias, y: see narrowed; x, w and bias for every sample or for all, bias may be absent. */
int64_t leanbayes_convolve(const argument *list, int64_t length) {
  call c = opened(list, length);
  narrow s;
  if (!narrowed(&c, &s)) return c.error;
  const each x = each_of(&c, s.samples, s.batch * s.inputs * s.h * s.w);
  const each w = each_of(&c, s.samples, s.inputs * s.outputs * s.kh * s.kw);
  each bias = {NULL, 0};
  if (absent(&c)) c.at++;
  else bias = each_of(&c, s.samples, s.outputs);
  float *y = floats(&c, s.samples * s.batch * s.outputs * s.oh * s.ow);
  if (!complete(&c)) return c.error;
  return CALL(convolve, &c, &s, x, w, bias, y);
}

/* mean, variance, factor, shift: x, and a normalisation that is still to be done, or nothing. */
static terms terms_of(call *c, const images *n) {
  const int64_t all = n->data * n->positions * n->channels;
  const float *mean = floats(c, all), *variance = floats(c, all), *factor = floats_or_null(c, n->channels);
  return (terms){mean, variance, factor, floats_or_null(c, n->channels), NULL, NULL};
}

/* sizes, mean, variance, factor, shift, other mean, other variance, slope, y, v, sums: mean y and variance v of a rectified
 * sum. sizes: data, positions, channels. sums: four numbers for each channel of a datum (see rectify), or absent. */
int64_t leanbayes_rectify(const argument *list, int64_t length) {
  call c = opened(list, length);
  images n;
  const int64_t *sizes = elements(&c, INT64, 3);
  if (c.error || !images_of(&c, sizes[0], sizes[1], sizes[2], &n)) return c.error;
  const int64_t all = n.data * n.positions * n.channels;
  terms x = terms_of(&c, &n);
  x.other_mean = floats_or_null(&c, all);
  x.other_variance = floats_or_null(&c, all);
  if (!x.other_mean != !x.other_variance) refuse(&c, KIND);
  const float slope = (float)real(&c);
  float *y = floats(&c, all), *v = floats(&c, all), *sums = floats_or_null(&c, 4 * n.data * n.channels);
  if (!complete(&c)) return c.error;
  CALL(rectify, &n, &x, slope, y, v, sums);
  return done(&c);
}

/* windows, mean, variance, factor, shift, near, y, v: mean y and variance v of maxima over windows of Gaussians. near: the
 * correlation of neighbours, by datum and channel, or absent. */
int64_t leanbayes_pool_moments(const argument *list, int64_t length) {
  call c = opened(list, length);
  windows s;
  if (!windowed(&c, &s)) return c.error;
  const int64_t width = s.columns.out * s.n.channels, out = s.n.data * s.rows.out * width;
  const terms x = terms_of(&c, &s.n);
  const float *near = floats_or_null(&c, s.n.data * s.n.channels);
  float *y = floats(&c, out), *v = floats(&c, out);
  if (!complete(&c)) return c.error;
  const int64_t rows = s.rows.size > s.rows.out ? s.rows.size : s.rows.out;
  const int64_t room = (rows * width + 31) / 16 * 16, line = (width + 15) / 16 * 16; /* a vector behind the last row is written */
  const pieces work = piece_each(&c, 4 * room + 3 * line, most_threads());
  if (lacks(&c)) return needed(&c);
  CALL(pool_moments, &s, &x, near, y, v, work, room, line);
  return done(&c);
}

/* sizes, mean, variance, near, beside, both, averages: see spread. sizes: data, positions, channels, width, step. */
int64_t leanbayes_spread(const argument *list, int64_t length) {
  call c = opened(list, length);
  images n;
  const int64_t *sizes = elements(&c, INT64, 5);
  if (c.error || !images_of(&c, sizes[0], sizes[1], sizes[2], &n)) return c.error;
  const int64_t all = n.data * n.positions * n.channels, width = sizes[3], step = sizes[4];
  if (width < 1 || width > n.positions || n.positions % width || step < 1) { refuse(&c, SHAPE); return c.error; }
  const float *mean = floats(&c, all), *variance = floats(&c, all), *near = floats_or_null(&c, n.data * n.channels);
  const int beside = (int)integer(&c, 0, 1);
  float *both = floats(&c, 2 * all), *averages = floats(&c, 4 * n.data * n.channels);
  if (!complete(&c)) return c.error;
  CALL(spread, &n, width, step, mean, variance, near, beside, both, averages);
  return done(&c);
}

#include "moments_interface.h"

/* The law of the first arguments: form, multiplicative, centre, std, rows; then mean (absent where nothing reads it) and scale,
 * of one size. */
static law weighed(call *c, const float **mean, const float **scale) {
  law l = {0};
  l.form = (int)integer(c, NORMAL, CUI);
  l.multiplicative = (int)integer(c, 0, 1);
  l.centre = (float)real(c);
  const double std = real(c);
  if (!(std > 0.0)) refuse(c, RANGE);
  l.inverse = (float)(1.0 / std);
  l.rows = integer(c, 1, MOST);
  if (c->error) return l;
  const int without = absent(c);
  const int64_t count = c->at + 2 < c->count ? c->list[c->at + 1].count : 0;
  if (count < 0 || count > MOST || count % l.rows) { c->at += 2; refuse(c, SHAPE); return l; }
  *mean = floats_or_null(c, count);
  *scale = floats(c, count);
  l.length = count / l.rows;
  if (l.form == NORMAL ? l.multiplicative : l.multiplicative != without) refuse(c, KIND);
  return l;
}

/* form, multiplicative, centre, std, rows, mean, scale, sums: the KL of each row. */
int64_t leanbayes_divergence(const argument *list, int64_t length) {
  call c = opened(list, length);
  const float *mean = NULL, *scale = NULL;
  const law l = weighed(&c, &mean, &scale);
  if (c.error) return c.error;
  float *sums = floats(&c, l.rows);
  if (!complete(&c)) return c.error;
  const int64_t each = stretches(l.length);
  double *partial = piece(&c, times(2 * each, l.rows));
  if (lacks(&c)) return needed(&c);
  CALL(divergences, &l, mean, scale, partial);
  for (int64_t r = 0; r < l.rows; r++) {
    double total = 0.0;
    for (int64_t k = 0; k < each; k++) total += partial[r * each + k];
    sums[r] = (float)total;
  }
  return done(&c);
}

/* form, multiplicative, centre, std, rows, mean, scale, g, dmean, dscale: gradients of both, absent where not wanted, from
 * those of the rows. */
int64_t leanbayes_divergence_gradients(const argument *list, int64_t length) {
  call c = opened(list, length);
  const float *mean = NULL, *scale = NULL;
  const law l = weighed(&c, &mean, &scale);
  if (c.error) return c.error;
  const float *g = floats(&c, l.rows);
  float *dmean = floats_or_null(&c, l.rows * l.length), *dscale = floats_or_null(&c, l.rows * l.length);
  if (dmean && !mean) refuse(&c, KIND);
  if (!complete(&c)) return c.error;
  CALL(divergence_slopes, &l, mean, scale, g, dmean, dscale);
  return done(&c);
}
