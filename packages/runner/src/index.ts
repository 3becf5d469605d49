export { DEFAULT_SHAPE, type Runner, type RunnerOptions, startRunner } from './runner.ts';
