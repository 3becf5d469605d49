export type ProcessFailure =
  /** No such program. */
  | 'missing'
  /** It exists, and could not be started. */
  | 'not-started'
  | 'timeout'
  | 'aborted'
  /** It printed more than it may. */
  | 'output'
  /** By a signal that was not ours. */
  | 'killed'
  /** It exited with another code than 0. */
  | 'exit';

/** A program that is missing, failed, or took too long; the message names the program and what it printed. */
export class ProcessError extends Error {
  override readonly name = 'ProcessError';
  readonly failure: ProcessFailure;
  /** The end of its standard error. */
  readonly stderr: string;

  constructor(failure: ProcessFailure, message: string, stderr = '') {
    super(message);
    this.failure = failure;
    this.stderr = stderr;
  }
}
