/** Messages between the supervisor and its child processes. */

/** From a child process. */
export type ProcessMessage =
  /** It has started; `facts` are shown to the user. */
  | { type: 'started'; facts: Record<string, string> }
  /** The control plane knows the process. Only of the runner. */
  | { type: 'linked' }
  /** It cannot start; the process ends after this. */
  | { type: 'failed'; message: string };

/** To a child process. */
export type SupervisorMessage =
  /** The service stops: finish, clean up, exit. */
  { type: 'stop' };

export function isProcessMessage(value: unknown): value is ProcessMessage {
  return typeof value === 'object' && value !== null && 'type' in value;
}
