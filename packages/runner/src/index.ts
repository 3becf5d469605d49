export { type Runner, startRunner } from './runner.ts';
export { DEFAULT_MACHINE_SIZE, type RunnerOptions } from './runner-options.ts';
