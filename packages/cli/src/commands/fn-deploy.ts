/** `rlp fn deploy NAME [FOLDER | --image IMAGE] [-- HANDLER…]`. */
import type { FunctionDeployResponse, FunctionFormConfig } from '@releap/contract';
import { buildFailure, followBuild, type Service, waitForVersion } from '@releap/sdk';
import { openContext } from '../build/context.ts';
import { postForm } from '../build/post-image.ts';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { parseCount, parseEnv, parseMebibytes, waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, show, writeTo } from '../terminal.ts';
import { type BoundOptions, boundsOf } from './fn-bounds.ts';

export interface DeployOptions extends BoundOptions {
  image?: string;
  file?: string;
  port?: string;
  vcpus?: string;
  mem?: string;
  scratch?: string;
  env?: string[];
  prewarm?: boolean;
  whenReady?: boolean;
  quiet?: boolean;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 30 * 60_000;

/** Prints the name and the number of the version. */
export async function deploy(
  context: Context,
  name: string,
  folders: readonly string[],
  handler: string[],
  options: DeployOptions,
): Promise<number> {
  const { image, file } = options;
  const [folder = '.', ...more] = folders;
  if (more.length > 0)
    throw usageError(`one folder is deployed, but ${folders.length} were named: put the handler after --`);
  if (image !== undefined && (folders.length > 0 || file !== undefined))
    throw usageError('--image and a folder or a Dockerfile do not go together');
  const deadlineMs = waitMs(options, WAIT_MS);
  const settings = settingsOf(context, handler, options);
  const service = openService(context);
  const created =
    image === undefined
      ? await deployFolder(context, service, name, folder, settings, file)
      : await service.api.deployFunction({ body: { name, image, ...settings } });
  if (options.wait === false) {
    return show(context, created, () => `${created.name} v${created.version}`);
  }
  const ready = await finish(context, service, created, { deadlineMs, quiet: options.quiet === true });
  if (context.options.json) printJson(context, { ...created, template_state: ready.template_state });
  else print(context, `${created.name} v${created.version}`);
  if (ready.template_error !== null && !context.options.json)
    context.terminal.stderr.write(
      `rlp: its instances start the handler, they are not restored with it: ${printable(ready.template_error)}\n`,
    );
  return EXIT.ok;
}

async function deployFolder(
  context: Context,
  service: Service,
  name: string,
  folder: string,
  settings: FunctionFormConfig,
  file: string | undefined,
): Promise<FunctionDeployResponse> {
  const opened = await openContext(folder, { file, stdin: context.terminal.stdin });
  const fields = { name, dockerfile: opened.dockerfile, config: JSON.stringify(settings) };
  return postForm(context, service, opened, fields, (body, call) =>
    service.patient.deployFunction({ body }, call),
  );
}

/** Waits until it can serve; the log of its build is printed on stderr meanwhile. */
async function finish(
  context: Context,
  service: Service,
  { name, version, build_job: build }: FunctionDeployResponse,
  { deadlineMs, quiet }: { deadlineMs: number; quiet: boolean },
) {
  try {
    if (build !== null && !quiet && !context.options.json) {
      const job = await followBuild(service, build, (chunk) => writeTo(context.terminal.stderr, chunk));
      if (job.status === 'failed') throw buildFailure(job, { logPrinted: true });
    }
    using spinner = new Spinner(context, `${name} v${version}`);
    return await waitForVersion(service, name, version, {
      deadlineMs,
      onStatus(state) {
        spinner.text = `${name} v${version}: ${state === 'pending' ? 'starting a first instance' : state}`;
      },
    });
  } catch (error) {
    if (!context.signal.aborted) throw error;
    throw new CliError(`interrupted; the deploy of version ${version} continues: rlp fn show ${name}`, {
      exitCode: EXIT.interrupted,
    });
  }
}

function settingsOf(context: Context, handler: string[], options: DeployOptions): FunctionFormConfig {
  const { port, vcpus, mem, scratch, env, prewarm, whenReady } = options;
  const { max_instances: maxInstances, ...bounds } = boundsOf(options);
  return {
    ...(handler.length > 0 ? { handler } : {}),
    ...(port === undefined ? {} : { port: parseCount('--port', port) }),
    ...(vcpus === undefined ? {} : { vcpus: parseCount('--vcpus', vcpus) }),
    ...(mem === undefined ? {} : { mem_mib: parseMebibytes('--mem', mem) }),
    ...(scratch === undefined ? {} : { scratch_mib: parseMebibytes('--scratch', scratch) }),
    ...(env === undefined ? {} : { env: parseEnv(env, context.terminal.env) }),
    ...(prewarm ? { snapshot_kind: 'fn_ready' } : {}),
    ...(whenReady ? { activate: 'when_ready' } : {}),
    ...bounds,
    ...(maxInstances === undefined || maxInstances === null ? {} : { max_instances: maxInstances }),
  };
}
