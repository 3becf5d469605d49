/**
 * `rlp run IMAGE -- CMD`, also of a snapshot or of a folder that is built first: a sandbox, and a command in it. Like
 * `docker run`, the sandbox stays unless --rm is given; unlike there, the image's own entrypoint runs too, and the command
 * beside it.
 */
import type { SandboxCreateRequest, SandboxCreateResponse, SandboxRecord } from '@releap/contract';
import {
  endLease,
  keepLease,
  openToolbox,
  OWN_SANDBOX,
  type Service,
  unmountStores,
  waitUntilRunning,
} from '@releap/sdk';
import { CliError, toCliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { retryShown, Spinner } from '../output/spinner.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, printJson, remark, show } from '../terminal.ts';
import { type CapturedEnd, type CommandOptions, commandStart, exitCodeOf, runCommand } from './command.ts';
import { type CreateOptions, createRequest } from './create-options.ts';
import { CLEANUP_MS, removeSandbox } from './remove-sandbox.ts';

/** Where the root file system comes from, as the options of the command say. */
export interface SourceOptions {
  fromSnapshot?: string;
  dockerfile?: string;
}

export interface RunOptions extends CreateOptions, Omit<CommandOptions, 'env'> {
  rm?: boolean;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 15 * 60_000;
const UPLOADS_MS = 5 * 60_000;

type Image = SandboxCreateRequest['image'];

/** An image of the service, or a local folder to build. */
export type Source = { image: Image } | { folder: string; file?: string | undefined };

/** References to images do not look like this. */
const FOLDER = /^(?:\.{1,2}$|\.{0,2}\/)/;

/** Separates the image from the command; the last `afterDashes` operands followed a `--`. */
export function runSource(
  operands: readonly string[],
  afterDashes: number,
  { fromSnapshot: snapshot, dockerfile: file }: SourceOptions,
): { source: Source; command: string[] } {
  const [image, ...command] = operands;
  if (file !== undefined) {
    if (snapshot !== undefined) throw usageError('--dockerfile and --from-snapshot do not go together');
    if (operands.length === afterDashes) return { source: { folder: '.', file }, command: [...operands] };
    if (image === undefined || !FOLDER.test(image))
      throw usageError(
        `--dockerfile needs a folder, as in ./app, but was given ${JSON.stringify(image)}: put the command after --`,
      );
    return { source: { folder: image, file }, command };
  }
  if (snapshot === undefined) {
    if (image === undefined)
      throw usageError('name an image, as in rlp run busybox, or a snapshot with --from-snapshot');
    return { source: FOLDER.test(image) ? { folder: image } : { image }, command };
  }
  if (snapshot === '')
    throw usageError('--from-snapshot needs the name of a snapshot: rlp snapshot ls lists them');
  if (operands.length > afterDashes)
    throw usageError(
      `--from-snapshot replaces the image, so ${JSON.stringify(image)} is not allowed: put the command after --`,
    );
  return { source: { image: { type: 'snapshot', name: snapshot } }, command: [...operands] };
}

export async function run(
  context: Context,
  source: Source,
  argv: string[],
  options: RunOptions,
): Promise<number> {
  if (argv.length === 0) return runWithoutCommand(context, source, options);
  if (options.wait === false)
    throw usageError('--no-wait goes with no command: a command needs a sandbox that runs');
  // What -e gives belongs to the sandbox, so that everything in it has it; the command inherits it.
  const { env: _env, ...commandOptions } = options;
  const start = commandStart(context, argv, commandOptions);
  const service = openService(context);
  const created = await create(context, service, source, options).catch(noCommand);
  using _lease = options.rm ? keepLease(service, created.vm_id) : undefined;
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
    if (options.rm) {
      if (mayHaveStores(source, options)) await uploadWritten(context, service, created);
      await removeSandbox(context, service, created.vm_id);
    }
  }
}

async function runWithoutCommand(context: Context, source: Source, options: RunOptions): Promise<number> {
  if (options.rm)
    throw usageError('--rm goes with a command: without one nothing says when the sandbox is done');
  if (options.tty || options.interactive) throw usageError('-i and -t go with a command');
  const service = openService(context);
  const created = await create(context, service, source, options);
  if (options.wait === false) {
    return show(context, created, () => created.vm_id);
  }
  const sandbox = await waitRunning(context, service, created, options);
  return show(context, { ...created, ...sandbox }, () => created.vm_id);
}

async function create(
  context: Context,
  service: Service,
  source: Source,
  options: RunOptions,
): Promise<SandboxCreateResponse> {
  // Options that are not valid are refused before anything is built.
  const request = createRequest(context, 'image' in source ? source.image : '', options);
  const image = 'image' in source ? source.image : await buildFolder(context, service, source, options);
  const body = { ...request, image, ...(options.rm && OWN_SANDBOX) };
  using spinner = new Spinner(context, 'creating the sandbox');
  return await service.api.createSandbox({ body }, { retry: retryShown(spinner) });
}

/** @returns the image's name: the same for each run of this folder, so that only changes are built */
async function buildFolder(
  context: Context,
  service: Service,
  { folder, file }: Extract<Source, { folder: string }>,
  { region, dockerData }: RunOptions,
): Promise<string> {
  const { finishBuild, startBuild } = await import('./image-build.ts');
  const { runImageName } = await import('../build/context.ts');
  const name = runImageName(folder);
  const docker = dockerData !== undefined;
  const created = await startBuild(context, service, { name, docker, region, folder, file });
  await finishBuild(context, service, created, { quiet: false });
  return name;
}

async function waitRunning(
  context: Context,
  service: Service,
  created: SandboxCreateResponse,
  options: RunOptions,
): Promise<SandboxRecord> {
  using spinner = new Spinner(context, `${created.name}: ${created.status}`);
  const deadlineMs = waitMs(options, WAIT_MS);
  return waitUntilRunning(service, created.vm_id, {
    deadlineMs,
    onStatus: spinner.statusOf(created.name),
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

function mayHaveStores(source: Source, { mount }: RunOptions): boolean {
  return mount !== undefined || ('image' in source && typeof source.image === 'object');
}

/** Deleting a sandbox does not wait for the uploads of its mounted object stores. @throws when it has to stay */
async function uploadWritten(
  context: Context,
  service: Service,
  { name, vm_id: id }: SandboxCreateResponse,
): Promise<void> {
  using spinner = new Spinner(context, `${name}: uploading to object stores`);
  try {
    const own = service.withSignal(AbortSignal.timeout(UPLOADS_MS + CLEANUP_MS));
    await unmountStores(own, id, context.signal.aborted ? 0 : UPLOADS_MS);
  } catch (error) {
    spinner.stop();
    const stays = await endLease(service, id).then(
      () => true,
      () => false,
    );
    remark(
      context,
      stays
        ? `sandbox ${name} (${id}) stays; rlp rm ${id} deletes it`
        : `sandbox ${name} (${id}) is deleted within ${OWN_SANDBOX.lease_s} s: its lease could not be ended`,
    );
    noCommand(error);
  }
}

/** rlp's own failures must not look like an exit code of the command. */
export function noCommand(error: unknown): never {
  const failure = toCliError(error);
  if (failure === undefined || failure.exitCode === EXIT.usage || failure.exitCode === EXIT.interrupted)
    throw error;
  const { message, status, code } = failure;
  throw new CliError(message, { exitCode: EXIT.noCommand, cause: error, status, code });
}
