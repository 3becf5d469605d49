/**
 * Connections to a sandbox beside the operations of its toolbox: URLs, the messages of a command with live streams, and SSH. Keep
 * imports cheap: the CLI loads this file at every start.
 */

/** Base URL of the toolbox of one sandbox. `base` is the `toolbox_proxy_url` of its region. */
export function toolboxUrl(base: string, vmId: string): string {
  return `${base.replace(/\/+$/, '')}/${encodeURIComponent(vmId)}`;
}

/** First byte of a binary message. */
export const PROCESS_CHANNEL = { stdin: 0, stdout: 1, stderr: 2 } as const;

/** Recommended size of the data of one binary message, in bytes; up to 4 MiB are accepted. */
export const PROCESS_STREAM_CHUNK_BYTES = 64 * 1024;

export interface TerminalSize {
  rows: number;
  cols: number;
}

/**
 * The WebSocket at `{toolbox_proxy_url}/{vm_id}/process/stream`: a command with live streams.
 *
 * The client's first message is a `ProcessStreamStart` as text. After it, binary messages carry data both ways:
 * one byte of channel, then the data. Text messages are the control messages below. The server's last message
 * is `exit` or `error`. When the client disconnects, the command is ended. docs/toolbox.md describes it in full.
 *
 * This is the start; it has exactly one of `argv` and `command` (run by `/bin/sh -c`).
 */
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

/**
 * Where the SSH gateway of a region is, and the host keys that it shows: `GET {toolbox_proxy_url}/ssh/host-keys` needs no credential
 * and gives this. `{toolbox_proxy_url}/{vm_id}/ssh` is a WebSocket whose binary messages are the bytes of an SSH connection that
 * needs no further credential.
 */
export interface SshHostKeys {
  host: string;
  port: number;
  /** As in `known_hosts` after the host: `ssh-ed25519 AAAA…`. */
  host_keys: readonly string[];
}

/** Path below `toolbox_proxy_url`. */
export const SSH_HOST_KEYS_PATH = '/ssh/host-keys';
/** Path below the toolbox URL of a sandbox. */
export const SSH_WEBSOCKET_PATH = '/ssh';
