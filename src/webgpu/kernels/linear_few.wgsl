// constants: TYPE ROWS TAIL
// y = f(norm(x) W^T + bias) for a few rows: 16 invocations share two outputs of ROWS rows (1 or 4),
// so that W is read once. With `gated`, the two are a gate and its factor, and y is f(gate) * factor.
// The norm is computed again by each workgroup, for which it reads x once more.
//#include linear.wgsl
var<workgroup> part: array<vec4f, 128>;
var<private> mean: vec4f;
var<private> factor: vec4f;

fn vector(first: u32, c: u32) -> vec4f { return vectors[first / 4u + c]; }

fn load_x(row: u32, r: u32, c: u32) -> vec4f {
  let v = raw_x(row, c);
  if (p.norm == 0u || (TAIL == 1u && 4u * c >= p.columns)) { return v; }
  var n = (v - mean[r]) * factor[r];
  if (p.gain != NONE) { n *= vector(p.gain, c); }
  if (p.shift != NONE) { n += vector(p.shift, c); }
  if (TAIL == 0u) { return n; }
  return select(vec4f(), n, exists(c));
}

//#include total.wgsl type=vec4f

fn normalize_rows(first: u32, t: u32) {
  let quads = (p.columns + 3u) / 4u;
  if (p.norm == 2u) {
    var sum = vec4f();
    for (var c = t; c < quads; c += 64u) {
      for (var r = 0u; r < ROWS; r++) { sum[r] += dot(raw_x(first + r, c), vec4f(1.0)); }
    }
    mean = total(t, sum) / f32(p.columns);
  }
  var squares = vec4f();
  for (var c = t; c < quads; c += 64u) {
    for (var r = 0u; r < ROWS; r++) {
      let v = select(vec4f(), raw_x(first + r, c) - mean[r], exists(c));
      squares[r] += dot(v, v);
    }
  }
  factor = inverseSqrt(total(t, squares) / f32(p.columns) + p.eps);
}

//#include main.wgsl
  let lane = t % 16u;
  let pair = index * 4u + t / 16u;
  let first = w.z * ROWS;
  if (p.norm != 0u) { normalize_rows(first, t); }
  let gated = p.gated != 0u;
  let row0 = select(2u * pair, pair + p.gate_row, gated);
  let row1 = select(2u * pair + 1u, pair + p.factor_row, gated);
  var s0 = vec4f();
  var s1 = vec4f();
  if (select(row0, pair, gated) < p.outputs) {
    let at0 = row0 * p.units;
    let at1 = min(row1, p.last_row) * p.units;
    for (var u = lane; u < p.units; u += 16u) {
      let unit0 = numbers[at0 + u];
      let unit1 = numbers[at1 + u];
      var q0 = vec4f();
      var q1 = vec4f();
      for (var j = 0u; j < GROUPS; j++) {
        let a = numbers_of(unit0, j);
        let b = numbers_of(unit1, j);
        let c = u * GROUPS + j;
        let v = load_x(first, 0u, c);
        q0.x += dot(a, v);
        q1.x += dot(b, v);
        if (ROWS > 1u) {
          let v1 = load_x(first + 1u, 1u, c);
          let v2 = load_x(first + 2u, 2u, c);
          let v3 = load_x(first + 3u, 3u, c);
          q0 += vec4f(0.0, dot(a, v1), dot(a, v2), dot(a, v3));
          q1 += vec4f(0.0, dot(b, v1), dot(b, v2), dot(b, v3));
        }
      }
      s0 += q0 * scale_of(row0, u);
      s1 += q1 * scale_of(min(row1, p.last_row), u);
    }
  }
  part[t] = s0;
  part[64u + t] = s1;
  for (var step = 8u; step > 0u; step >>= 1u) {
    workgroupBarrier();
    if (lane < step) {
      part[t] += part[t + step];
      part[64u + t] += part[64u + t + step];
    }
  }
  workgroupBarrier();
  // Invocation r of the 16 writes row r.
  let row = first + lane;
  if (lane >= ROWS || row >= p.rows) { return; }
  let sum0 = part[t - lane][lane];
  let sum1 = part[64u + t - lane][lane];
  let to = p.y_first + row * p.y_stride;
  if (gated) {
    if (pair < p.outputs) { write(to + pair, activated(p.code, finished(sum0, row0)) * finished(sum1, row1)); }
    return;
  }
  if (row0 < p.outputs) { write(to + row0, activated(p.code, finished(sum0, row0))); }
  if (row1 < p.outputs) { write(to + row1, activated(p.code, finished(sum1, row1))); }
}
