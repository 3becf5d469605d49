/** Messages between the supervisor and its child processes, and between `npm start` (setup/foreground.mjs) and the service. */

/** From a child process. */
export type ProcessMessage =
  /** It has started; `facts` are shown to the user. The whole service is ready then. */
  | { type: 'started'; facts: Record<string, string> }
  /** The control plane knows the process. Only of the runner. */
  | { type: 'linked' }
  /** It cannot start; the process ends after this. */
  | { type: 'failed'; message: string };

/** To a child process. */
export type SupervisorMessage =
  /** The service stops: finish, clean up, exit. */
  { type: 'stop' };

/** To the parent process, if it has a channel to this one. */
export function sendToParent(message: ProcessMessage): void {
  if (process.connected) process.send?.(message, undefined, undefined, () => undefined);
}

export function isProcessMessage(value: unknown): value is ProcessMessage {
  return typeof value === 'object' && value !== null && 'type' in value;
}
