// How the function of a kernel begins, which its file ends: t is one of 64 invocations, w the workgroup, and index its number by x and y.
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u, @builtin(local_invocation_index) t: u32) {
  let index = w.y * n.x + w.x;
