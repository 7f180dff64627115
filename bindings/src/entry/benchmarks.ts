// The file that multihead bench loads: the benchmarks, and the package that they measure.

export * from '../../bench/report.mjs';
export { load } from './index_node.js';
