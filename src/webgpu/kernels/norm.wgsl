// y = norm(x): a workgroup for each row.
//#params NormBlock
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
var<workgroup> part: array<f32, 64>;

//#include total.wgsl type=f32

//#include main.wgsl
  if (index >= p.rows) { return; }
  let first = p.x_first + index * p.x_stride;
  let to = p.y_first + index * p.y_stride;
  var mean = 0.0;
  if (p.layer != 0u) {
    var sum = 0.0;
    for (var c = t; c < p.columns; c += 64u) { sum += x[first + c]; }
    mean = total(t, sum) / f32(p.columns);
  }
  var squares = 0.0;
  for (var c = t; c < p.columns; c += 64u) {
    let v = x[first + c] - mean;
    squares += v * v;
  }
  let factor = inverseSqrt(total(t, squares) / f32(p.columns) + p.eps);
  for (var c = t; c < p.columns; c += 64u) {
    var v = (x[first + c] - mean) * factor;
    if (p.gain != NONE) { v *= vectors[p.gain + c]; }
    if (p.shift != NONE) { v += vectors[p.shift + c]; }
    y[to + c] = v;
  }
}
