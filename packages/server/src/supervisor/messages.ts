/** What the supervisor and the parts it runs say to each other over the channel of a child process. */

/** From a part. */
export type PartMessage =
  /** It does its work; `facts` are for people. */
  | { type: 'started'; facts: Record<string, string> }
  /** It cannot start; the process ends after this. */
  | { type: 'failed'; message: string };

/** To a part. */
export type SupervisorMessage =
  /** The service goes down: finish, take away what was made, end. */
  { type: 'stop' };

export function isPartMessage(value: unknown): value is PartMessage {
  return typeof value === 'object' && value !== null && 'type' in value;
}
