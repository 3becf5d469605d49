/**
 * `rlp run IMAGE -- CMD`, `rlp run --from-snapshot NAME -- CMD`: a sandbox, and a command in it. Like `docker run`, the sandbox stays unless --rm is
 * given; unlike there, the image's own entrypoint runs too, and the command beside it.
 */
import type { SandboxCreateRequest, SandboxCreateResponse, SandboxRecord } from '@releap/contract';
import { CliError, usageError } from '../cli-error.ts';
import { retryOnOverload } from '../client/connect.ts';
import { openService, type Service } from '../client/service.ts';
import { waitUntilRunning } from '../client/wait-sandbox.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { parseDuration } from '../parse/values.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import {
  type CapturedEnd,
  type CommandOptions,
  commandStart,
  exitCodeOf,
  runCommand,
} from '../toolbox/command.ts';
import { openToolbox } from '../toolbox/toolbox.ts';
import { type CreateOptions, createRequest } from './create-options.ts';

export interface RunOptions extends CreateOptions, Omit<CommandOptions, 'env'> {
  rm?: boolean;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 15 * 60_000;
const CLEANUP_MS = 30_000;

type Source = SandboxCreateRequest['image'];

/** Separates the image from the command; the last `afterDashes` operands followed a `--`. */
export function runSource(
  operands: readonly string[],
  afterDashes: number,
  snapshot: string | undefined,
): { source: Source; command: string[] } {
  const [image, ...command] = operands;
  if (snapshot === undefined) {
    if (image === undefined)
      throw usageError('name an image, as in rlp run busybox, or a snapshot with --from-snapshot');
    return { source: image, command };
  }
  if (snapshot === '')
    throw usageError('--from-snapshot needs the name of a snapshot: rlp snapshot ls lists them');
  if (operands.length > afterDashes)
    throw usageError(
      `--from-snapshot replaces the image, so ${JSON.stringify(image)} is not allowed: put the command after --`,
    );
  return { source: { type: 'snapshot', name: snapshot }, command: [...operands] };
}

export async function run(
  context: Context,
  image: Source,
  argv: string[],
  options: RunOptions,
): Promise<number> {
  if (argv.length === 0) return runWithoutCommand(context, image, options);
  if (options.wait === false)
    throw usageError('--no-wait goes with no command: a command needs a sandbox that runs');
  // What -e gives belongs to the sandbox, so that everything in it has it; the command inherits it.
  const { env: _env, ...commandOptions } = options;
  const start = commandStart(context, argv, commandOptions);
  const body = createRequest(context, image, options);
  const service = openService(context);
  const created = await create(context, service, body).catch(noCommand);
  try {
    const sandbox = await waitRunning(context, service, created, options);
    const toolbox = await openToolbox(service, sandbox);
    const end = await runCommand(context, toolbox, start, commandOptions);
    report(context, created, end, options);
    return exitCodeOf(end);
  } catch (error) {
    if (!options.rm)
      remark(context, `sandbox ${created.name} (${created.vm_id}) stays; rlp rm ${created.vm_id} deletes it`);
    return noCommand(error);
  } finally {
    if (options.rm) await remove(context, created.vm_id);
  }
}

async function runWithoutCommand(context: Context, image: Source, options: RunOptions): Promise<number> {
  if (options.rm)
    throw usageError('--rm goes with a command: without one nothing says when the sandbox is done');
  if (options.tty || options.interactive) throw usageError('-i and -t go with a command');
  const body = createRequest(context, image, options);
  const service = openService(context);
  const created = await create(context, service, body);
  if (options.wait === false) {
    if (context.options.json) printJson(context, created);
    else print(context, created.vm_id);
    return EXIT.ok;
  }
  const sandbox = await waitRunning(context, service, created, options);
  if (context.options.json) printJson(context, { ...created, ...sandbox });
  else print(context, created.vm_id);
  return EXIT.ok;
}

async function create(
  context: Context,
  service: Service,
  body: SandboxCreateRequest,
): Promise<SandboxCreateResponse> {
  using spinner = new Spinner(context, 'creating the sandbox');
  const retry = retryOnOverload((reason) => {
    spinner.text = `refused for now (${reason}), trying again`;
  });
  return await service.api.createSandbox({ body }, { retry });
}

async function waitRunning(
  context: Context,
  service: Service,
  created: SandboxCreateResponse,
  options: RunOptions,
): Promise<SandboxRecord> {
  using spinner = new Spinner(context, `${created.name}: ${created.status}`);
  const deadlineMs =
    options.waitTimeout === undefined ? WAIT_MS : parseDuration('--wait-timeout', options.waitTimeout);
  return waitUntilRunning(service, created.vm_id, {
    deadlineMs,
    onStatus: (status) => {
      spinner.text = `${created.name}: ${status}`;
    },
  });
}

function report(
  context: Context,
  created: SandboxCreateResponse,
  end: CapturedEnd,
  options: RunOptions,
): void {
  if (context.options.json)
    printJson(context, {
      ...created,
      status: 'running',
      exit_code: end.exitCode,
      timed_out: end.timedOut,
      ...(end.error === undefined ? {} : { error: end.error }),
      stdout: end.stdout,
      stderr: end.stderr,
    });
  else if (!options.rm)
    remark(context, `sandbox ${created.name} (${created.vm_id}) stays; rlp rm ${created.vm_id} deletes it`);
}

/** Also after a Ctrl-C, so with its own signal. */
async function remove(context: Context, id: string): Promise<void> {
  const service = openService(context, AbortSignal.timeout(CLEANUP_MS));
  await service.api.deleteSandbox({ params: { id } }).catch((error: unknown) => {
    context.terminal.stderr.write(
      `rlp: sandbox ${id} was not deleted: ${error instanceof Error ? error.message : String(error)}\n`,
    );
  });
}

/** rlp's own failures must not look like an exit code of the command. */
export function noCommand(error: unknown): never {
  if (!(error instanceof CliError) || error.exitCode === EXIT.usage || error.exitCode === EXIT.interrupted)
    throw error;
  throw new CliError(error.message, {
    exitCode: EXIT.noCommand,
    cause: error,
    ...(error.status === undefined ? {} : { status: error.status }),
  });
}
