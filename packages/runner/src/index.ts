export { DEFAULT_MACHINE_SIZE, type Runner, type RunnerOptions, startRunner } from './runner.ts';
