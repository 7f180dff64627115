/**
 * A loop around the steps of a trainer. It runs in pages and in workers.
 *
 * @module multihead/training
 */

export * from '../training/train.js';
