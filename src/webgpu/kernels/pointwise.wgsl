// An element of y from one of x and one of z or of a list of factors; an invocation an element.
//#params PointwiseBlock
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> z: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
//#include functions.wgsl

//#include main.wgsl
  let i = index * 64u + t;
  if (i >= p.rows * p.columns) { return; }
  let row = i / p.columns;
  let c = i % p.columns;
  var v = activated(p.code, x[p.x_first + row * p.x_stride + c] * p.scale);
  let at = p.y_first + row * p.y_stride + c;
  if (p.mode >= 8u && bitcast<u32>(y[at]) == 0xff800000u) { return; }
  switch p.mode & 7u {
    case 1u: { v *= z[p.z_first + row * p.z_stride + c]; }
    case 2u: { v *= z[p.z_first + c / p.each]; }
    case 3u: { v += y[at]; }
    case 4u: { v *= y[at]; }
    case 5u: { v = select(v, y[at], z[p.z_first + row * p.z_stride + c] != 0.0); }
    case 6u: { if (c >= p.each) { v = 0.0; } }
    case 7u: { v = select(y[at], 0.0, bitcast<u32>(z[p.z_first + row * p.z_stride + c]) == 0xff800000u); }
    default: {}
  }
  y[at] = v;
}
