// Sums of values by weights that were edited, which need not be those of a softmax: an invocation an element.
//#params WeightedBlock
//#include halves.wgsl
@group(0) @binding(1) var<storage, read> weights: array<f32>; // (batch, heads, tokens, keys)
//#include load.wgsl x=v width=p.width at=2 halves=NO
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

//#include main.wgsl
  let i = index * 64u + t;
  let columns = p.heads * p.width;
  if (i >= p.rows * columns) { return; }
  let row = i / columns;
  let c = i % columns;
  let h = c / p.width;
  let b = row / p.tokens;
  let map = ((b * p.heads + h) * p.tokens + row % p.tokens) * p.keys;
  let value = b * p.v.x + h / p.group * p.v.y + c % p.width;
  var sum = 0.0;
  for (var j = 0u; j < p.keys; j++) { sum += weights[map + j] * v_at(value + j * p.v.z); }
  y[p.y_first + row * p.y_stride + c] = sum;
}
