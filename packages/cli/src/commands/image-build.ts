/** `rlp image build -t NAME [FOLDER]`: an image from a Dockerfile and its folder. */
import type { ImageCreateResponse } from '@releap/contract';
import { buildFailure, followBuild, type Service, waitForBuild } from '@releap/sdk';
import { openContext } from '../build/context.ts';
import { postImage, type PostedBuild } from '../build/post-image.ts';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { openService } from '../service.ts';
import { type Context, show, writeTo } from '../terminal.ts';

export interface ImageBuildOptions {
  tag?: string;
  file?: string;
  docker?: boolean;
  region?: string;
  quiet?: boolean;
  /** False with `--no-wait`. */
  wait?: boolean;
}

export interface FolderBuild extends PostedBuild {
  folder: string;
  file?: string | undefined;
}

/** The service ends a build sooner. */
const WAIT_MS = 24 * 3_600_000;

export async function buildImage(
  context: Context,
  folder: string,
  options: ImageBuildOptions,
): Promise<number> {
  const { tag, file, docker = false, region } = options;
  if (tag === undefined || tag === '') throw usageError('name the image: rlp image build -t NAME FOLDER');
  const service = openService(context);
  const created = await startBuild(context, service, { name: tag, docker, region, folder, file });
  if (options.wait !== false) await finishBuild(context, service, created, { quiet: options.quiet === true });
  const status = options.wait === false ? created.status : 'ready';
  return show(context, { ...created, status }, () => created.image_id);
}

/** Sends the folder. */
export async function startBuild(
  context: Context,
  service: Service,
  { folder, file, ...build }: FolderBuild,
): Promise<ImageCreateResponse> {
  const opened = await openContext(folder, { file, stdin: context.terminal.stdin });
  return await postImage(context, service, opened, build);
}

/**
 * Waits until the image is built, and prints the build's log on stderr meanwhile unless it is to be quiet.
 * @throws CliError when the build fails, and with the command to follow it again when the user interrupts
 */
export async function finishBuild(
  context: Context,
  service: Service,
  { name, job_id: jobId, status }: ImageCreateResponse,
  { quiet }: { quiet: boolean },
): Promise<void> {
  try {
    if (quiet || context.options.json) {
      using spinner = new Spinner(context, `building ${name}: ${status}`);
      const onStatus = (now: string): void => {
        spinner.text = `building ${name}: ${now}`;
      };
      return await waitForBuild(service, jobId, { deadlineMs: WAIT_MS, onStatus });
    }
    const job = await followBuild(service, jobId, (chunk) => writeTo(context.terminal.stderr, chunk));
    if (job.status === 'failed') throw buildFailure(job, { logPrinted: true });
  } catch (error) {
    if (!context.signal.aborted) throw error;
    throw new CliError(`interrupted; the build continues, and rlp image logs -f ${name} follows it`, {
      exitCode: EXIT.interrupted,
    });
  }
}
