// Functions of numbers, by Function's number. None makes an infinity out of finite numbers.
fn tanh_of(x: f32) -> f32 { return tanh(clamp(x, -20.0, 20.0)); }

fn function_of(code: u32, x: f32) -> f32 {
  switch code {
    case 1u: { return max(x, 0.0); }
    case 2u: { // x Phi(x), with erf of Abramowitz and Stegun 7.1.26, within 1.5e-7
      let z = abs(x) * 0.70710678;
      let t = 1.0 / (1.0 + 0.3275911 * z);
      let sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
      let tail = 0.5 * sum * exp2(max(-1.4426950 * z * z, -120.0));
      return x * select(tail, 1.0 - tail, x > 0.0);
    }
    case 3u: {
      let near = clamp(x, -30.0, 30.0);
      return 0.5 * x * (1.0 + tanh_of(0.79788456 * (near + 0.044715 * near * near * near)));
    }
    case 4u: { return x / (1.0 + exp2(min(-1.4426950 * x, 120.0))); }
    case 5u: { return tanh_of(x); }
    default: { return x; }
  }
}

// f(x), or from 8 on f(x) x.
fn activated(code: u32, x: f32) -> f32 {
  let value = function_of(code & 7u, x);
  return select(value, value * x, code >= 8u);
}
