export { ProcessError } from './process-error.ts';
export { run, runToExit } from './run.ts';
export type { RunOptions, RunResult } from './run.ts';
export { killGroup, NOT_FOUND_CODE, startProcess, toolEnvironment } from './start.ts';
