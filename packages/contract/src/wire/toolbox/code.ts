/** Interpreters and git of the toolbox. The toolbox daemon in the sandbox serves them. */
import { Type } from 'typebox';
import type { Operation, WebSocketDescription } from '../platform/operation.ts';
import { common, daemonErrors, Env, Path, policy } from './shared.ts';

export const InterpreterCode = Type.Object(
  {
    code: Type.String(),
    contextId: Type.Optional(Type.String({ description: 'Default: the context `default`.' })),
    envs: Type.Optional(Env),
    timeout: Type.Optional(Type.Number({ default: 600, description: 'Seconds; 0 for none.' })),
  },
  { description: 'The only message of the client.' },
);
export const InterpreterStdout = Type.Object({ type: Type.Literal('stdout'), text: Type.String() });
export const InterpreterStderr = Type.Object({ type: Type.Literal('stderr'), text: Type.String() });
export const InterpreterException = Type.Object({
  type: Type.Literal('error'),
  name: Type.String({ description: 'As in `ZeroDivisionError`.' }),
  value: Type.String(),
  traceback: Type.String(),
});
export const InterpreterControl = Type.Object({
  type: Type.Literal('control'),
  text: Type.Enum(['completed', 'interrupted'] as const),
});

export const INTERPRETER_SOCKET: WebSocketDescription = {
  client: { text: InterpreterCode },
  server: {
    text: Type.Union([InterpreterStdout, InterpreterStderr, InterpreterException, InterpreterControl]),
  },
  closes: {
    1000: 'The code has ended.',
    1008: policy,
    1011: 'An internal error; the reason says why.',
    4008: 'The timeout has passed.',
  },
};

const Context = Type.Object({
  id: Type.String(),
  cwd: Type.String(),
  language: Type.Enum(['python'] as const),
  active: Type.Boolean(),
  createdAt: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
});

const codeErrors = {
  ...daemonErrors,
  501: 'The image has no program for it.',
} as const;
const gitErrors = {
  ...codeErrors,
  401: 'The credentials are missing or invalid, here or at the remote repository.',
  409: 'The sandbox is not running; or git refuses because of the state of the repository.',
} as const;

const repository = Type.Object({ path: Path });
const credentials = {
  username: Type.Optional(Type.String()),
  password: Type.Optional(Type.String({ writeOnly: true })),
};
const branch = Type.Object({ path: Path, name: Type.String() });
const Status = Type.Enum([
  'Unmodified',
  'Untracked',
  'Modified',
  'Added',
  'Deleted',
  'Renamed',
  'Copied',
  'Updated but unmerged',
] as const);

export const toolboxCodeOperations = {
  runCode: {
    ...common,
    method: 'POST',
    path: '/process/code-run',
    summary: 'Run code, and respond when it has ended',
    description:
      'By the first of these programs that the image has: `python3`, `python`; `node`, `bun`, `deno`; for TypeScript `tsx`, `ts-node`, ' +
      '`bun`, `deno`, `node` 22.6 or newer.',
    body: Type.Object({
      code: Type.String({ minLength: 1 }),
      language: Type.Enum(['python', 'javascript', 'typescript'] as const),
      argv: Type.Optional(Type.Array(Type.String())),
      envs: Type.Optional(Env),
      timeout: Type.Optional(
        Type.Number({ minimum: 0, maximum: 86_400, description: 'Seconds; 360 when absent or 0.' }),
      ),
    }),
    success: {
      status: 200,
      response: {
        description: 'It has ended.',
        schema: Type.Object({
          exitCode: Type.Integer(),
          result: Type.String({ description: 'Standard output and standard error, as UTF-8.' }),
          truncated: Type.Optional(
            Type.Boolean({ description: 'The output was longer than 8 MiB: this is its end.' }),
          ),
          artifacts: Type.Optional(
            Type.Object(
              { charts: Type.Array(Type.Record(Type.String(), Type.Unknown())) },
              { description: 'Figures that Python code has shown with matplotlib. Absent without any.' },
            ),
          ),
        }),
      },
    },
    errors: { ...codeErrors, 408: 'The timeout has passed; it was ended.' },
  },
  executeInInterpreter: {
    ...common,
    method: 'GET',
    path: '/process/interpreter/execute',
    summary: 'Run Python code whose variables last, over a WebSocket',
    description: '[toolbox.md](toolbox.md#interpreters) describes its messages.',
    websocket: INTERPRETER_SOCKET,
    success: { status: 101, response: { description: 'The connection is a WebSocket.' } },
    errors: codeErrors,
  },
  createInterpreterContext: {
    ...common,
    method: 'POST',
    path: '/process/interpreter/context',
    summary: 'Start an interpreter with variables of its own',
    body: Type.Object({
      cwd: Type.Optional(Type.String()),
      language: Type.Optional(Type.Enum(['python'] as const)),
    }),
    success: { status: 200, response: { description: 'Started.', schema: Context } },
    errors: { ...codeErrors, 429: 'There are too many.' },
  },
  listInterpreterContexts: {
    ...common,
    method: 'GET',
    path: '/process/interpreter/context',
    summary: 'List interpreters',
    success: {
      status: 200,
      response: { description: 'The interpreters.', schema: Type.Object({ contexts: Type.Array(Context) }) },
    },
    errors: codeErrors,
  },
  deleteInterpreterContext: {
    ...common,
    method: 'DELETE',
    path: '/process/interpreter/context/:context_id',
    summary: 'End an interpreter with all its processes',
    params: Type.Object({ context_id: Type.String() }),
    success: {
      status: 200,
      response: { description: 'Ended.', schema: Type.Object({ message: Type.String() }) },
    },
    errors: codeErrors,
  },
  gitClone: {
    ...common,
    method: 'POST',
    path: '/git/clone',
    summary: 'Clone a repository',
    body: Type.Object({
      url: Type.String(),
      path: Path,
      branch: Type.Optional(Type.String()),
      commit_id: Type.Optional(Type.String({ description: 'Checked out without a branch.' })),
      ...credentials,
      insecure_skip_tls: Type.Optional(
        Type.Boolean({ description: "The server's certificate is not verified." }),
      ),
    }),
    success: { status: 200, response: { description: 'Cloned.' } },
    errors: gitErrors,
  },
  gitStatus: {
    ...common,
    method: 'GET',
    path: '/git/status',
    summary: 'Get the branch and changed files of a repository',
    query: repository,
    success: {
      status: 200,
      response: {
        description: 'Unchanged files are not listed.',
        schema: Type.Object({
          currentBranch: Type.String(),
          fileStatus: Type.Array(
            Type.Object({
              name: Type.String(),
              extra: Type.String({ description: 'The former name of a renamed file.' }),
              staging: Status,
              worktree: Status,
            }),
          ),
          ahead: Type.Integer(),
          behind: Type.Integer(),
          branchPublished: Type.Boolean({ description: 'The branch has one of the remote repository.' }),
        }),
      },
    },
    errors: gitErrors,
  },
  gitListBranches: {
    ...common,
    method: 'GET',
    path: '/git/branches',
    summary: 'List the local branches',
    query: repository,
    success: {
      status: 200,
      response: {
        description: 'Their names.',
        schema: Type.Object({ branches: Type.Array(Type.String()) }),
      },
    },
    errors: gitErrors,
  },
  gitCreateBranch: {
    ...common,
    method: 'POST',
    path: '/git/branches',
    summary: 'Create a branch',
    body: branch,
    success: { status: 201, response: { description: 'Created.' } },
    errors: gitErrors,
  },
  gitDeleteBranch: {
    ...common,
    method: 'DELETE',
    path: '/git/branches',
    summary: 'Delete a branch, also one that is not merged',
    body: branch,
    success: { status: 204, response: { description: 'Deleted.' } },
    errors: gitErrors,
  },
  gitCheckout: {
    ...common,
    method: 'POST',
    path: '/git/checkout',
    summary: 'Check out a branch or commit',
    body: Type.Object({ path: Path, branch: Type.String() }),
    success: { status: 200, response: { description: 'Checked out.' } },
    errors: gitErrors,
  },
  gitAdd: {
    ...common,
    method: 'POST',
    path: '/git/add',
    summary: 'Stage files',
    body: Type.Object({
      path: Path,
      files: Type.Array(Type.String({ description: 'Below the repository; `.` for all.' }), { minItems: 1 }),
    }),
    success: { status: 200, response: { description: 'Staged.' } },
    errors: gitErrors,
  },
  gitCommit: {
    ...common,
    method: 'POST',
    path: '/git/commit',
    summary: 'Commit what is staged',
    body: Type.Object({
      path: Path,
      message: Type.String(),
      author: Type.String(),
      email: Type.String(),
      allow_empty: Type.Optional(Type.Boolean()),
    }),
    success: {
      status: 200,
      response: { description: 'Committed.', schema: Type.Object({ hash: Type.String() }) },
    },
    errors: gitErrors,
  },
  gitPush: {
    ...common,
    method: 'POST',
    path: '/git/push',
    summary: 'Push the current branch',
    body: Type.Object({ path: Path, ...credentials }),
    success: { status: 200, response: { description: 'Pushed.' } },
    errors: gitErrors,
  },
  gitPull: {
    ...common,
    method: 'POST',
    path: '/git/pull',
    summary: 'Pull the current branch',
    description: 'Only where that is a fast-forward.',
    body: Type.Object({ path: Path, ...credentials }),
    success: { status: 200, response: { description: 'Pulled.' } },
    errors: gitErrors,
  },
  gitHistory: {
    ...common,
    method: 'GET',
    path: '/git/history',
    summary: 'List the newest 1000 commits',
    query: repository,
    success: {
      status: 200,
      response: {
        description: 'Newest first.',
        schema: Type.Array(
          Type.Object({
            hash: Type.String(),
            author: Type.String(),
            email: Type.String(),
            message: Type.String(),
            timestamp: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
          }),
        ),
      },
    },
    errors: gitErrors,
  },
} as const satisfies Record<string, Operation>;
