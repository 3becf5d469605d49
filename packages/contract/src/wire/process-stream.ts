/**
 * The WebSocket at `{toolbox_proxy_url}/{vm_id}/process/stream`: a command with live streams.
 *
 * The client's first message is a `ProcessStreamStart` as text. After it, binary messages carry data both ways:
 * one byte of channel, then the data. Text messages are the control messages below. The server's last message
 * is `exit` or `error`. When the client disconnects, the command is ended. docs/toolbox.md describes it in full.
 * Keep imports cheap: the CLI loads this file at every start.
 */

/** First byte of a binary message. */
export const PROCESS_CHANNEL = { stdin: 0, stdout: 1, stderr: 2 } as const;

/** Recommended size of the data of one binary message, in bytes; up to 4 MiB are accepted. */
export const PROCESS_STREAM_CHUNK_BYTES = 64 * 1024;

export interface TerminalSize {
  rows: number;
  cols: number;
}

/** Exactly one of `argv` and `command` (run by `/bin/sh -c`). */
export interface ProcessStreamStart {
  type: 'start';
  argv?: string[];
  command?: string;
  cwd?: string;
  env?: Record<string, string>;
  /** Name or uid, optionally `:group`; the image's when absent. */
  user?: string;
  /** Whether stdin will be sent; otherwise it is empty. */
  stdin?: boolean;
  /** A terminal of this size; then all output is on stdout. */
  pty?: TerminalSize;
  /** Whether the server sends `output-end`. */
  output_end?: boolean;
  /** Seconds after which the command is ended; none when absent. */
  timeout?: number;
}

export type ProcessStreamClientMessage =
  /** End of stdin. */
  { type: 'stdin-end' } | ({ type: 'resize' } & TerminalSize) | { type: 'signal'; signal: string };

export type ProcessStreamServerMessage =
  /** Only if the start requested it: nothing more follows on this channel; the command may still run. */
  | { type: 'output-end'; channel: number }
  /** As a shell counts: 128 + n after signal n, 126 and 127 when it could not start, with the reason in `error` and on stderr. */
  | { type: 'exit'; exit_code: number; timed_out: boolean; signal?: string; error?: string }
  /** A control message failed; the command continues. */
  | { type: 'warning'; error: string }
  | { type: 'error'; status: number; error: string };
