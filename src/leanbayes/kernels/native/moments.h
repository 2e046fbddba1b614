/* What a convolution needs besides itself for `predict(estimator="moments")`: the squares of its weights, and how positions of its
 * output vary together (prediction/moments/linear.py has the formulas, and the same from torch's functions).
 *
 * A filter is [outputs][taps][inputs], as torch's channels-last order has it. */

/* sigma^2 and mu^2 of rows of weights, side by side: [rows][2][length]. rho: sigma = log(1 + exp(rho)); variance: sigma^2. One of
 * the two is there. */
static void NAME(squares)(int64_t rows, int64_t length, const float *mean, const float *rho, const float *variance, float *both) {
#pragma omp parallel for schedule(static) if (rows * length > 1 << 13)
  for (int64_t r = 0; r < rows; r++) {
    const int64_t from = r * length;
    float *first = both + 2 * from, *second = first + length;
    for (int64_t i = 0; i < length; i += WIDTH) {
      const int64_t left = length - i < WIDTH ? length - i : WIDTH;
      const int whole = left == WIDTH;
      const float *at = (variance ? variance : rho) + from + i;
      vf spread = whole ? NAME(load)(at) : NAME(first_of)(at, left), slope;
      const vf mu = whole ? NAME(load)(mean + from + i) : NAME(first_of)(mean + from + i, left);
      if (rho) {
        spread = NAME(softplus)(spread, &slope);
        spread *= spread;
      }
      const vf square = mu * mu;
      if (whole) {
        NAME(store)(first + i, spread);
        NAME(store)(second + i, square);
      } else
        for (int64_t k = 0; k < left; k++) first[i + k] = spread[k], second[i + k] = square[k];
    }
  }
}

/* Sums over the taps k of a filter, five arrays [outputs][inputs]: of sigma^2 a, sigma^2 a^2, mu^2 a, mu a and mu (P mu), for a = alone
 * and P = pairs (see _inside in linear.py). squares: [outputs][taps][2][inputs]. */
static void NAME(over_taps)(const filter *s, const float *mean, const float *squares, const float *alone, const float *pairs, float *sums) {
  const int64_t inputs = s->inputs, apart = s->outputs * inputs;
#pragma omp parallel for schedule(static) if (apart * s->taps > 1 << 13)
  for (int64_t o = 0; o < s->outputs; o++)
    for (int64_t c0 = 0; c0 < inputs; c0 += CHUNK) {
      const int64_t wide = inputs - c0 < CHUNK ? inputs - c0 : CHUNK;
      float *to = sums + o * inputs + c0, met[CHUNK];
      for (int k = 0; k < 5; k++) memset(to + k * apart, 0, sizeof(float) * (size_t)wide);
      for (int64_t k = 0; k < s->taps; k++) {
        const float *mu = mean + (o * s->taps + k) * inputs + c0, *sigma2 = squares + 2 * (o * s->taps + k) * inputs + c0;
        const float *mu2 = sigma2 + inputs, a = alone[k];
#pragma omp simd
        for (int64_t i = 0; i < wide; i++) {
          to[i] += sigma2[i] * a;
          to[apart + i] += sigma2[i] * (a * a);
          to[2 * apart + i] += mu2[i] * a;
          to[3 * apart + i] += mu[i] * a;
          met[i] = 0.0f;
        }
        for (int64_t l = 0; l < s->taps; l++) {
          const float *other = mean + (o * s->taps + l) * inputs + c0, p = pairs[k * s->taps + l];
          if (p != 0.0f)
#pragma omp simd
            for (int64_t i = 0; i < wide; i++) met[i] += other[i] * p;
        }
#pragma omp simd
        for (int64_t i = 0; i < wide; i++) to[4 * apart + i] += mu[i] * met[i];
      }
    }
}

/* The correlations of positions of the output, [2][data][outputs], and the factor by which its variance is larger for that of the
 * input, [data][outputs]: see _together in linear.py. averages: see spread. share: of the input, or NULL. uncertain: whether its
 * variance counts. read: of a thread, six lines of `line` floats. */
static void NAME(together)(const filter *s, const float *sums, const float *averages, const float *share, const float *bias,
                           int uncertain, float *found, float *factor, pieces work, int64_t line) {
  const int64_t inputs = s->inputs, each = s->data * inputs, apart = s->outputs * inputs, out = s->data * s->outputs;
#pragma omp parallel for schedule(static) if (s->data * apart > 1 << 14)
  for (int64_t n = 0; n < s->data; n++) {
    float *read[6];
    for (int k = 0; k < 6; k++) read[k] = (float *)own(work) + k * line;
    for (int64_t i = 0; i < inputs; i++) {
      const float *at = averages + n * inputs + i, level = at[0], power = at[each], variance = at[2 * each], pairs = at[3 * each];
      const float far = share ? variance * share[n * inputs + i] : 0.0f, near = share ? variance * share[each + n * inputs + i] : 0.0f;
      read[0][i] = power + variance;
      read[1][i] = level * level + far;
      read[2][i] = pairs + near;
      read[3][i] = uncertain ? variance - near : 0.0f;
      read[4][i] = far;
      read[5][i] = near;
    }
    for (int64_t o = 0; o < s->outputs; o++) {
      const float *w = sums + o * inputs;
      float total = bias ? bias[o] : 0.0f, whole = total, close = total, excess = 0.0f;
#pragma omp simd reduction(+ : total, whole, close, excess)
      for (int64_t i = 0; i < inputs; i++) {
        const float sum = w[3 * apart + i];
        total += read[0][i] * w[i] + read[3][i] * w[2 * apart + i];
        whole += read[1][i] * w[apart + i] + read[4][i] * (sum * sum);
        close += read[2][i] * w[i];
        excess += read[5][i] * w[4 * apart + i];
      }
      const float least = 0x1p-126f, all = total + excess, over = all > least ? all : least;
      const float far = whole / over, near = (close + excess) / over;
      found[n * s->outputs + o] = far > 1.0f ? 1.0f : far > 0.0f ? far : 0.0f;
      found[out + n * s->outputs + o] = near > 1.0f ? 1.0f : near > 0.0f ? near : 0.0f;
      if (factor) factor[n * s->outputs + o] = 1.0f + excess / (total > least ? total : least);
    }
  }
}
