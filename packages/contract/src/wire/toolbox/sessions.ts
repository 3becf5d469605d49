/** Sessions and terminals of the toolbox. The toolbox daemon in the sandbox serves them. */
import { Type } from 'typebox';
import type { Operation, WebSocketDescription } from '../platform/operation.ts';
import { common, daemonErrors } from './shared.ts';

export const SESSION_LOG_SOCKET: WebSocketDescription = {
  when: 'follow=true',
  client: {},
  server: { binary: 'The bytes 01 01 01 for standard output or 02 02 02 for standard error, then the data.' },
  closes: { 1000: 'The command has ended.' },
};

export const TerminalStatus = Type.Object({
  type: Type.Literal('control'),
  status: Type.Enum(['connected', 'error', 'exited'] as const),
  error: Type.Optional(Type.String({ description: 'With `error`.' })),
  exitCode: Type.Optional(Type.Integer({ description: 'With `exited`.' })),
});

export const TERMINAL_SOCKET: WebSocketDescription = {
  subprotocols: { 'X-Daytona-Pty-Exit-Control': 'The server sends `exited` before it closes.' },
  client: { binary: 'Input. Text messages are input too.' },
  server: { text: TerminalStatus, binary: 'Output.' },
  closes: { 1000: 'The shell has ended; the reason is `{"exitCode": 0, "exitReason"?: "…"}`.' },
};

const Command = Type.Object({
  id: Type.String(),
  command: Type.String(),
  exitCode: Type.Optional(Type.Integer({ description: 'Absent while it waits or runs.' })),
});
const Session = Type.Object({ sessionId: Type.String(), commands: Type.Array(Command) });
const Output = {
  output: Type.String({ description: 'Both streams in the order in which they were written.' }),
  stdout: Type.String(),
  stderr: Type.String(),
};
const Terminal = Type.Object({
  id: Type.String(),
  cwd: Type.String(),
  envs: Type.Record(Type.String(), Type.String()),
  cols: Type.Integer(),
  rows: Type.Integer(),
  createdAt: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  active: Type.Boolean({ description: 'Its shell runs.' }),
  lazyStart: Type.Boolean(),
});
const size = {
  cols: Type.Integer({ minimum: 1, maximum: 4096 }),
  rows: Type.Integer({ minimum: 1, maximum: 4096 }),
};

const sessionParams = Type.Object({ session_id: Type.String() });
const commandParams = Type.Object({ session_id: Type.String(), command_id: Type.String() });
const terminalParams = Type.Object({ terminal_id: Type.String() });

const ended = {
  409: 'The sandbox is not running, or is frozen for a snapshot; or the session has ended.',
} as const;
const full = { 429: 'There are too many sessions, terminals or waiting commands.' } as const;

export const toolboxSessionOperations = {
  createSession: {
    ...common,
    method: 'POST',
    path: '/process/session',
    summary: 'Start a session',
    description: 'A shell whose state (folder, variables, functions) lasts from one command to the next.',
    body: Type.Object({ sessionId: Type.String({ minLength: 1, maxLength: 128 }) }),
    success: { status: 201, response: { description: 'Started.' } },
    errors: { ...daemonErrors, ...full },
  },
  listSessions: {
    ...common,
    method: 'GET',
    path: '/process/session',
    summary: 'List sessions and their commands',
    success: { status: 200, response: { description: 'The sessions.', schema: Type.Array(Session) } },
    errors: daemonErrors,
  },
  getSession: {
    ...common,
    method: 'GET',
    path: '/process/session/:session_id',
    summary: 'Get a session with its commands',
    params: sessionParams,
    success: { status: 200, response: { description: 'The session.', schema: Session } },
    errors: daemonErrors,
  },
  deleteSession: {
    ...common,
    method: 'DELETE',
    path: '/process/session/:session_id',
    summary: 'End a session with all its processes',
    params: sessionParams,
    success: { status: 204, response: { description: 'Ended.' } },
    errors: daemonErrors,
  },
  executeInSession: {
    ...common,
    method: 'POST',
    path: '/process/session/:session_id/exec',
    summary: 'Run a command in a session',
    description:
      'Commands of a session run one after the other. With `runAsync` the response is 202 `{cmdId}` at once; else it comes when the ' +
      'command has ended. A client that disconnects does not end the command.',
    params: sessionParams,
    body: Type.Object({
      command: Type.String({ minLength: 1 }),
      runAsync: Type.Optional(Type.Boolean()),
    }),
    success: {
      status: 200,
      response: {
        description: 'It has ended.',
        schema: Type.Object({ cmdId: Type.String(), exitCode: Type.Integer(), ...Output }),
      },
    },
    errors: { ...daemonErrors, ...full, ...ended },
  },
  getSessionCommand: {
    ...common,
    method: 'GET',
    path: '/process/session/:session_id/command/:command_id',
    summary: 'Get a command of a session',
    params: commandParams,
    success: { status: 200, response: { description: 'The command.', schema: Command } },
    errors: daemonErrors,
  },
  getSessionCommandLogs: {
    ...common,
    method: 'GET',
    path: '/process/session/:session_id/command/:command_id/logs',
    summary: 'Get the output of a command of a session, or follow it',
    description:
      'The newest 8 MiB are kept; `x-releap-truncated: true` says that older output was dropped. With `follow=true` it is a WebSocket: ' +
      '[toolbox.md](toolbox.md#sessions) describes its messages.',
    params: commandParams,
    query: Type.Object({ follow: Type.Optional(Type.Boolean()) }),
    websocket: SESSION_LOG_SOCKET,
    success: { status: 200, response: { description: 'The output.', schema: Type.Object(Output) } },
    errors: daemonErrors,
  },
  sendSessionCommandInput: {
    ...common,
    method: 'POST',
    path: '/process/session/:session_id/command/:command_id/input',
    summary: 'Write to the standard input of a command',
    description: 'Of one that was started with `runAsync`, while it runs.',
    params: commandParams,
    body: Type.Object({ data: Type.String() }),
    success: { status: 204, response: { description: 'Written.' } },
    errors: { ...daemonErrors, 409: 'The command takes no input, or does not read it.' },
  },
  createTerminal: {
    ...common,
    method: 'POST',
    path: '/process/pty',
    summary: 'Create a terminal with a shell',
    body: Type.Object({
      id: Type.String({ minLength: 1, maxLength: 128 }),
      cwd: Type.Optional(Type.String()),
      envs: Type.Optional(Type.Record(Type.String(), Type.String({ writeOnly: true }))),
      cols: Type.Optional(size.cols),
      rows: Type.Optional(size.rows),
      lazyStart: Type.Optional(
        Type.Boolean({ description: 'The shell starts with the first connection. Default: at once.' }),
      ),
    }),
    success: {
      status: 201,
      response: { description: 'Created.', schema: Type.Object({ sessionId: Type.String() }) },
    },
    errors: { ...daemonErrors, ...full },
  },
  listTerminals: {
    ...common,
    method: 'GET',
    path: '/process/pty',
    summary: 'List terminals',
    success: {
      status: 200,
      response: { description: 'The terminals.', schema: Type.Object({ sessions: Type.Array(Terminal) }) },
    },
    errors: daemonErrors,
  },
  getTerminal: {
    ...common,
    method: 'GET',
    path: '/process/pty/:terminal_id',
    summary: 'Get a terminal',
    params: terminalParams,
    success: { status: 200, response: { description: 'The terminal.', schema: Terminal } },
    errors: daemonErrors,
  },
  deleteTerminal: {
    ...common,
    method: 'DELETE',
    path: '/process/pty/:terminal_id',
    summary: 'End a terminal with all its processes',
    params: terminalParams,
    success: {
      status: 200,
      response: { description: 'Ended.', schema: Type.Object({ message: Type.String() }) },
    },
    errors: daemonErrors,
  },
  resizeTerminal: {
    ...common,
    method: 'POST',
    path: '/process/pty/:terminal_id/resize',
    summary: 'Change the size of a terminal',
    params: terminalParams,
    body: Type.Object(size),
    success: { status: 200, response: { description: 'The terminal.', schema: Terminal } },
    errors: daemonErrors,
  },
  connectTerminal: {
    ...common,
    method: 'GET',
    path: '/process/pty/:terminal_id/connect',
    summary: 'Connect to a terminal, over a WebSocket',
    description: '[toolbox.md](toolbox.md#terminals) describes its messages.',
    params: terminalParams,
    websocket: TERMINAL_SOCKET,
    success: { status: 101, response: { description: 'The connection is a WebSocket.' } },
    errors: daemonErrors,
  },
} as const satisfies Record<string, Operation>;
