/* The functions of moments.h that Python calls. */

/* sizes, mean, rho, variance, both: see squares. sizes: rows, length. One of rho and variance is absent. */
int64_t leanbayes_squares(const argument *list, int64_t length) {
  call c = opened(list, length);
  const int64_t *sizes = elements(&c, INT64, 2);
  if (c.error) return c.error;
  const int64_t rows = sizes[0], each = sizes[1];
  if (rows < 0 || each < 1 || rows > MOST || each > MOST || times(rows, each) > MOST / 2) { refuse(&c, SHAPE); return c.error; }
  const float *mean = floats(&c, rows * each), *rho = floats_or_null(&c, rows * each), *variance = floats_or_null(&c, rows * each);
  if (!rho == !variance) refuse(&c, KIND);
  float *both = floats(&c, 2 * rows * each);
  if (!complete(&c)) return c.error;
  CALL(squares, rows, each, mean, rho, variance, both);
  return done(&c);
}

/* sizes, mean, squares, alone, pairs, averages, share, bias, uncertain, sums, found, factor: see over_taps and together. sizes: data,
 * inputs, outputs, taps. share and factor are there or absent together; bias may be absent. */
int64_t leanbayes_together(const argument *list, int64_t length) {
  call c = opened(list, length);
  const int64_t *n = elements(&c, INT64, 4);
  if (c.error) return c.error;
  const filter s = {n[0], n[1], n[2], n[3]};
  for (int i = 0; i < 4; i++)
    if (n[i] < (i > 0) || n[i] > EDGE) { refuse(&c, SHAPE); return c.error; }
  const int64_t weights = times(times(s.inputs, s.outputs), s.taps);
  if (weights > MOST / 8 || times(s.data, s.inputs) > MOST / 8 || times(s.data, s.outputs) > MOST / 8 || times(s.taps, s.taps) > MOST) {
    refuse(&c, LARGE);
    return c.error;
  }
  const float *mean = floats(&c, weights), *squares = floats(&c, 2 * weights), *alone = floats(&c, s.taps);
  const float *pairs = floats(&c, s.taps * s.taps), *averages = floats(&c, 4 * s.data * s.inputs);
  const float *share = floats_or_null(&c, 2 * s.data * s.inputs), *bias = floats_or_null(&c, s.outputs);
  const int uncertain = (int)integer(&c, 0, 1);
  float *sums = floats(&c, 5 * s.inputs * s.outputs), *found = floats(&c, 2 * s.data * s.outputs);
  float *factor = floats_or_null(&c, s.data * s.outputs);
  if (!share != !factor) refuse(&c, KIND);
  if (!complete(&c)) return c.error;
  const int64_t line = (s.inputs + 15) / 16 * 16;
  const pieces work = piece_each(&c, 6 * line, most_threads());
  if (lacks(&c)) return needed(&c);
  CALL(over_taps, &s, mean, squares, alone, pairs, sums);
  CALL(together, &s, sums, averages, share, bias, uncertain, found, factor, work, line);
  return done(&c);
}
