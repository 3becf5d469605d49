/** `rlp volume cp SRC DST`: files and folders in and out of a volume, through a sandbox that mounts it meanwhile. */
import { randomBytes } from 'node:crypto';
import { PassThrough } from 'node:stream';
import {
  commitVolume,
  keepLease,
  openToolbox,
  OWN_SANDBOX,
  type Service,
  type Toolbox,
  waitUntilDeleted,
  waitUntilRunning,
} from '@releap/sdk';
import { statLocal } from '@releap/sdk/node/copy';
import { streamProcess } from '@releap/sdk/node/process';
import { CliError, messageOf, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { retryShown, Spinner } from '../output/spinner.ts';
import { openService } from '../service.ts';
import { type Context, printJson } from '../terminal.ts';
import { type Copy, isToStdout, readCopy, runCopy } from './cp.ts';
import { CLEANUP_MS, removeSandbox } from './remove-sandbox.ts';

const MOUNT = '/volume';
/** Enough for tar and the toolbox. */
const SIZE = { mem_mib: 512, scratch_mib: 64 };
/** A volume that was last used on another host is fetched from the store. */
const START_MS = 15 * 60_000;

/** The real path of the nearest thing that is there. */
const REAL = 'p=$1; while [ ! -e "$p" ] && [ ! -L "$p" ]; do p=${p%/*}; done; exec readlink -f "$p"';

export async function copyVolume(
  context: Context,
  source: string,
  target: string,
  { image }: { image: string },
): Promise<number> {
  const copy = readCopy(wholePath(source), wholePath(target), 'VOLUME:PATH');
  const path = pathOf(copy);
  if (copy.direction === 'in' && copy.local.type === 'local') await statLocal(copy.local.path);
  const service = openService(context);
  const volume = await service.api.getVolume({ params: { id_or_name: copy.where } });
  const id = await create(context, service, volume.id, image);
  using _lease = keepLease(service, id);
  try {
    const toolbox = await openToolbox(service, await running(context, service, id));
    const shown = `${JSON.stringify(copy.path)} in volume ${volume.name}`;
    await checkStays(toolbox, path, shown);
    const count = await runCopy(context, copy, { toolbox, path, shown });
    // What is copied is safe when the command succeeds, whatever becomes of the host.
    if (copy.direction === 'in') await commit(context, service, volume.id);
    if (context.options.json && !isToStdout(copy))
      printJson(context, { volume: volume.name, volume_id: volume.id, ...count });
  } finally {
    await removeSandbox(context, service, id);
    // A sandbox that is being deleted keeps the volume from its deletion.
    const own = service.withSignal(AbortSignal.timeout(CLEANUP_MS));
    await waitUntilDeleted(own, id, { deadlineMs: CLEANUP_MS }).catch(() => undefined);
  }
  return EXIT.ok;
}

/** `VOLUME:` is all of it. */
function wholePath(text: string): string {
  return /^[^/:]+:$/.test(text) ? `${text}/` : text;
}

function pathOf({ path }: Copy): string {
  const below = path.replace(/^\/+/, '');
  if (below.split('/').includes('..'))
    throw usageError(`${JSON.stringify(path)} is not a path of a volume: it has a part ..`);
  // With the dot, the root of the volume stands for what is in it: it has no name of its own.
  return below === '' ? `${MOUNT}/.` : `${MOUNT}/${below}`;
}

async function create(context: Context, service: Service, volume: string, image: string): Promise<string> {
  using spinner = new Spinner(context, 'creating a sandbox for the copy');
  const body = {
    ...SIZE,
    ...OWN_SANDBOX,
    image,
    name: `volume-cp-${randomBytes(4).toString('hex')}`,
    volumes: [{ volume, mount_path: MOUNT }],
    egress_policy: { enabled: true, allow: [] },
  };
  return (await service.api.createSandbox({ body }, { retry: retryShown(spinner) })).vm_id;
}

async function running(context: Context, service: Service, id: string) {
  using spinner = new Spinner(context, 'mounting the volume');
  return await waitUntilRunning(service, id, {
    deadlineMs: START_MS,
    onStatus: spinner.statusOf(`mounting the volume`),
  });
}

async function commit(context: Context, service: Service, volume: string): Promise<void> {
  using _spinner = new Spinner(context, 'committing');
  try {
    await commitVolume(service, volume);
  } catch (error) {
    throw new CliError(`the files are copied, and not committed yet: ${messageOf(error)}`, { cause: error });
  }
}

/** Symbolic links in the volume lead to places in the sandbox, which are gone with it. */
async function checkStays(toolbox: Toolbox, path: string, shown: string): Promise<void> {
  const output = new PassThrough();
  let real = '';
  output.on('data', (chunk: Buffer) => {
    if (real.length < 10_000) real += chunk.toString('utf8');
  });
  const end = await streamProcess(
    toolbox,
    { type: 'start', argv: ['/bin/sh', '-c', REAL, 'sh', path.replace(/\/+\.?$/, '')], user: '0' },
    { stdin: null, stdout: output, stderr: new PassThrough().resume() },
  );
  const place = real.replace(/\n$/, '');
  if (end.exitCode === 0 && (place === MOUNT || place.startsWith(`${MOUNT}/`))) return;
  throw new CliError(
    end.exitCode === 0 || real === ''
      ? `${shown} is behind a symbolic link that leads out of the volume, or nowhere`
      : `${shown} cannot be looked at: ${end.error ?? `exit code ${end.exitCode}`}`,
  );
}
