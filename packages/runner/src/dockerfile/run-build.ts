/** One build in its micro-VM: the context goes in, buildah runs, the result comes out. */
import type { DockerfileRoot } from '@releap/contract';
import type { BuiltImage, DockerfileBuild } from '../image/dockerfile-images.ts';
import type { ImageLimits } from '../image/image-limits.ts';
import type { ImageStore } from '../image/image-store.ts';
import { BaseImages } from './base-images.ts';
import { isGzip, peek, verified } from './build-context.ts';
import type { Context, OpenBlob } from './build-context.ts';
import { buildCommand, CONTEXT, EVENTS, ID_FILE, INLINE, pushCommand } from './build-commands.ts';
import { buildFailed, explainFailure, isOutOfDisk, outOfDisk } from './build-error.ts';
import { DOCKERFILE_MAX_BYTES } from './build-limits.ts';
import type { BuildLimits } from './build-limits.ts';
import { BuildOutput } from './build-output.ts';
import {
  engineDockerfile,
  ENGINELESS,
  findProgramsCommand,
  hasEngine,
  installFailure,
  packageManagerOf,
} from './docker-engine.ts';
import { mayFetch, type FinishedBuild } from './finished-builds.ts';
import { readResult } from './build-result.ts';
import type { BuildVm, CommandResult } from './build-vm.ts';

export interface RunBuildOptions extends DockerfileBuild {
  vm: BuildVm;
  images: Pick<ImageStore, 'withLayers'>;
  limits: BuildLimits;
  imageLimits: Pick<ImageLimits, 'layers' | 'compressedBytes' | 'manifestBytes'>;
  openBlob: OpenBlob;
}

const IMAGE_ID = /^sha256:([0-9a-f]{64})\s*$/;

export interface EndedBuild {
  image: BuiltImage;
  /** Its base images, unless the same build may give something else next time. */
  bases: FinishedBuild['bases'] | undefined;
}

/** @throws ImageError whose message is fit for the user; another error is not the build's fault */
export async function runBuild(root: DockerfileRoot, options: RunBuildOptions): Promise<EndedBuild> {
  const { vm, images, limits, signal } = options;
  const output = new BuildOutput(options.onOutput);
  const note = (text: string): void => output.note(text);
  if (root.context) await unpack(root.context, options);
  const file = await writeDockerfile(root.dockerfile, options);
  const bases = new BaseImages({
    images,
    vm,
    projectId: root.project_id,
    access: root,
    signal,
    note,
  });
  const text = await readText(vm, file, signal);
  await bases.renew(text);
  let built: string | undefined;
  while ((built = await runBuildah(file, bases.arguments, output, options)) === undefined) {
    if (output.missingImage === undefined) throw await failure(output, file, options);
    await bases.add(output.missingImage);
    output.repeat();
  }
  const imageId = root.docker ? await withEngine(built, output, options) : built;
  const isRepeatable = !mayFetch(text) && !bases.hasTriggers;
  const ended = (image: BuiltImage): EndedBuild => ({ image, bases: isRepeatable ? bases.used : undefined });
  const digest = await options.known(imageId);
  if (digest !== undefined) {
    note('every step was cached, and its image is here');
    return ended({ digest, imageId });
  }
  checked(await vm.run(pushCommand(imageId), { signal }), limits);
  const result = await readResult({
    vm,
    workDir: options.workDir,
    limits: options.imageLimits,
    known: (diffId) => bases.layer(diffId),
    signal,
  });
  return ended({ ...result, imageId });
}

/** @returns the id of the image, or undefined when the build has failed */
async function runBuildah(
  file: string,
  bases: readonly string[],
  output: BuildOutput,
  { vm, signal }: RunBuildOptions,
): Promise<string | undefined> {
  const onOutput = (chunk: Buffer): void => output.write(chunk);
  const { exitCode } = await vm.run(buildCommand(file, bases), { signal, onOutput });
  output.flush();
  if (exitCode !== 0) return undefined;
  const imageId = IMAGE_ID.exec(await readText(vm, ID_FILE, signal))?.[1];
  if (imageId === undefined) throw buildFailed('buildah names no image as its result');
  return imageId;
}

/** The image with a container engine and its mark. @returns its id */
async function withEngine(imageId: string, output: BuildOutput, options: RunBuildOptions): Promise<string> {
  const { vm, limits, signal } = options;
  const printed = async (command: string): Promise<string> => {
    const result = await vm.run(command, { signal });
    checked(result, limits);
    return result.stdout;
  };
  // Only mounts the image: it may have no shell.
  const programs = await printed(findProgramsCommand(imageId));
  const manager = hasEngine(programs) ? undefined : packageManagerOf(programs);
  output.note(manager === undefined ? 'the image has dockerd' : `installing Docker with ${manager}`);
  const user = await printed(
    `buildah tag ${imageId} ${ENGINELESS} && buildah inspect --type image --format '{{.OCIv1.Config.User}}' ${imageId}`,
  );
  await vm.guest.files.write(INLINE, Buffer.from(engineDockerfile(user.trim(), manager)), { signal });
  output.repeat();
  const result = await runBuildah(INLINE, [], output, options);
  if (result === undefined) {
    const error = await failure(output, INLINE, options);
    // That a limit of the build was met is the better reason.
    throw manager !== undefined && error.message.startsWith('RUN ')
      ? installFailure(manager, output.end)
      : error;
  }
  if (!hasEngine(await printed(findProgramsCommand(result))))
    throw buildFailed(`docker: true needs dockerd, and what ${manager} installs as Docker has none`);
  return result;
}

/** Streams the context into the micro-VM. */
async function unpack(context: Context, { vm, limits, openBlob, signal }: RunBuildOptions): Promise<void> {
  const { head, all } = await peek(verified(await openBlob(context.digest, signal), context));
  const extract = `tar -x${isGzip(head) ? 'z' : ''}f - -C ${CONTEXT} --no-same-owner --warning=no-timestamp`;
  const { exitCode, stderr } = await vm.run(`exec ${extract}`, { signal, input: all });
  if (isOutOfDisk(stderr)) throw outOfDisk(limits);
  if (exitCode !== 0) {
    const lines = stderr.split('\n').filter((line) => line.startsWith('tar: '));
    const reason = lines.find((line) => !line.includes('Removing leading')) ?? 'tar: no reason is given';
    throw buildFailed(`the build context cannot be unpacked: ${reason.replace(/^tar: /, '')}`);
  }
  const special = await vm.run(`find ${CONTEXT} -type b -o -type c -o -type p -o -type s | head -n 1`, {
    signal,
  });
  const name = special.stdout.trim().slice(CONTEXT.length);
  if (name !== '')
    throw buildFailed(`the build context has a device, FIFO or socket: ${JSON.stringify(name)}`);
}

/** @returns its path in the micro-VM */
async function writeDockerfile(
  dockerfile: DockerfileRoot['dockerfile'],
  { vm, signal }: RunBuildOptions,
): Promise<string> {
  if ('text' in dockerfile) {
    await vm.guest.files.write(INLINE, Buffer.from(dockerfile.text), { signal });
    return INLINE;
  }
  const { path } = dockerfile;
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  if (path.includes('\0') || parts.includes('..') || parts.length === 0) {
    throw buildFailed(`${JSON.stringify(path)} is no path of a Dockerfile in the context`);
  }
  const file = `${CONTEXT}/${parts.join('/')}`;
  const found = await vm.guest.files.stat(file, { signal, follow: true }).catch(() => undefined);
  if (found?.type !== 'file') throw buildFailed(`the build context has no file ${JSON.stringify(path)}`);
  if (found.size > DOCKERFILE_MAX_BYTES) {
    throw buildFailed(
      `${JSON.stringify(path)} has ${found.size} bytes; a Dockerfile has at most ${DOCKERFILE_MAX_BYTES}`,
    );
  }
  return file;
}

async function failure(
  output: BuildOutput,
  file: string,
  { vm, limits, signal }: RunBuildOptions,
): Promise<Error> {
  const { error, end } = output;
  const dockerfile = await readText(vm, file, signal).catch(() => '');
  const { stdout } = await vm.run(EVENTS, { signal });
  const count = (name: string): number => Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(stdout)?.[1] ?? 0);
  const exhaustion = { oomKills: count('oom_kill'), forksRefused: count('pids_max') };
  return explainFailure({ error, output: end, dockerfile, ...exhaustion }, limits);
}

function checked({ exitCode, stdout, stderr }: CommandResult, limits: BuildLimits): void {
  if (exitCode === 0) return;
  const said = `${stdout}\n${stderr}`.trim();
  if (isOutOfDisk(said)) throw outOfDisk(limits);
  throw buildFailed(`the result of the build cannot be written: ${said.split('\n').at(-1) ?? ''}`);
}

async function readText(vm: BuildVm, path: string, signal: AbortSignal): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of vm.guest.files.read(path, { length: DOCKERFILE_MAX_BYTES, signal })) {
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks).toString('utf8');
}
