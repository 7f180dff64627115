// Runs a program on several local ranks of MPI (Debian: openmpi-bin).
import { spawnSync } from 'node:child_process';

/** True if this machine has mpirun. */
export const hasMpirun = !spawnSync('mpirun', ['--version']).error;

// Settings of Open MPI: allow more ranks than cores, and root in a container.
const settings = {
  OMPI_ALLOW_RUN_AS_ROOT: '1',
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1',
  OMPI_MCA_rmaps_base_oversubscribe: '1',
  PRTE_MCA_rmaps_default_mapping_policy: ':oversubscribe',
  OMPI_MCA_mpi_yield_when_idle: '1',
};

/** Runs a program on `count` ranks, for at most two minutes. */
export function mpirun(count, program, ...args) {
  const limits = { encoding: 'utf8', env: { ...process.env, ...settings }, timeout: 120e3 };
  return spawnSync('mpirun', ['-n', String(count), program, ...args], limits);
}
