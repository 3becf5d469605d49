/**
 * The web socket at `{toolbox_proxy_url}/{vm_id}/process/stream`: a command with its streams, live.
 *
 * The client's first message is a `ProcessStreamStart` as text. After it, binary messages carry data both ways:
 * one byte of channel, then at most `PROCESS_STREAM_CHUNK_BYTES`. Text messages are the control messages below.
 * The server's last message is `exit` or `error`. A client that goes away ends its command.
 * No import here may cost anything: the command line loads this file at every start.
 */

/** First byte of a binary message. */
export const PROCESS_CHANNEL = { stdin: 0, stdout: 1, stderr: 2 } as const;

/** Largest piece of data in one binary message, in bytes. */
export const PROCESS_STREAM_CHUNK_BYTES = 64 * 1024;

export interface TerminalSize {
  rows: number;
  cols: number;
}

/** Exactly one of `argv` and `shell` (run by `/bin/sh -c`). */
export interface ProcessStreamStart {
  argv?: string[];
  shell?: string;
  cwd?: string;
  env?: Record<string, string>;
  /** `name`, `uid`, `name:group` or `uid:gid`; the image's when absent. */
  user?: string;
  /** Whether stdin will be sent; otherwise it is at its end from the start. */
  stdin?: boolean;
  /** A terminal of this size; then everything comes on stdout. */
  pty?: TerminalSize;
  /** Milliseconds after which the command is ended; none when absent. */
  timeout_ms?: number;
}

export type ProcessStreamClientMessage =
  /** Nothing more comes on stdin. */
  | { type: 'end' }
  | ({ type: 'resize' } & TerminalSize)
  /** Without `SIG`, as in `INT`. */
  | { type: 'signal'; signal: string };

export type ProcessStreamServerMessage =
  /** As a shell counts: 128 + n after signal n, 126 and 127 when it could not start, 124 when its time was over. */
  | { type: 'exit'; exit_code: number; timed_out?: boolean; signal?: string }
  | { type: 'error'; status: number; error: string };
