/**
 * For teaching and research: two experiments in which attention heads learn to specialize, and statistics of heads.
 *
 * @module multihead/lab
 */

export { createExperiment, headStatistics } from '../api/lab.js';
