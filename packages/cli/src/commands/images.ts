/** `rlp image ls|create|rm|logs`. */
import type { ImageRecord } from '@releap/contract';
import { followBuild, hasStatus, listImages as allImages, readBuildLog, waitForBuild } from '@releap/sdk';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { age, size, table } from '../output/table.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, show, writeTo } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface ImageCreateOptions {
  docker?: boolean;
  region?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 30 * 60_000;

export async function listImages(context: Context, options: { quiet?: boolean }): Promise<number> {
  const images: ImageRecord[] = [];
  for await (const image of allImages(openService(context))) images.push(image);
  if (context.options.json) printJson(context, images);
  else if (options.quiet) for (const { name } of images) print(context, printable(name));
  else
    print(
      context,
      table(
        ['NAME', 'STATUS', 'SIZE', 'AGE', 'SOURCE', 'DIGEST'],
        images.map((image) => [
          image.name,
          image.status,
          size(image.bytes),
          age(image.built_at ?? image.created_at),
          sourceOf(image),
          image.manifest_name?.slice(0, 19) ?? '-',
        ]),
      ),
    );
  return EXIT.ok;
}

export async function createImage(
  context: Context,
  name: string,
  ref: string,
  options: ImageCreateOptions,
): Promise<number> {
  const deadlineMs = waitMs(options, WAIT_MS);
  const service = openService(context);
  const created = await service.api.createImage({
    body: { name, source: { type: 'registry', ref }, docker: options.docker, region: options.region },
  });
  if (options.wait !== false) {
    using spinner = new Spinner(context, `building ${name}: ${created.status}`);
    await waitForBuild(service, created.job_id, {
      deadlineMs,
      onStatus: spinner.statusOf(`building ${name}`),
    });
  }
  const status = options.wait === false ? created.status : 'ready';
  return show(context, { ...created, status }, () => created.image_id);
}

export async function removeImages(
  context: Context,
  names: string[],
  options: { force?: boolean },
): Promise<number> {
  const service = openService(context);
  return await forEachNamed(context, 'image', names, async (name) => {
    if (name === '') throw usageError('no image was named');
    try {
      await service.api.deleteImage({ params: { id_or_name: name } });
      return { status: 'deleted', printed: name };
    } catch (error) {
      if (options.force && hasStatus(error, 404, 'image_not_found')) return { status: 'absent' };
      throw error;
    }
  });
}

/** The log of an image's newest build. */
export async function imageLogs(
  context: Context,
  name: string,
  options: { follow?: boolean },
): Promise<number> {
  if (options.follow && context.options.json) throw usageError('--follow and --json do not go together');
  if (name === '') throw usageError('no image was named');
  const { stdout } = context.terminal;
  const service = openService(context);
  const image = await service.api.getImage({ params: { id_or_name: name } });
  const jobId = image.job_id;
  if (jobId === undefined)
    throw new CliError(`image ${printable(image.name)} is built in and has no log`, {
      exitCode: EXIT.notFound,
    });
  if (options.follow) await followBuild(service, jobId, (chunk) => writeTo(stdout, chunk));
  else if (context.options.json)
    printJson(context, { job_id: jobId, text: await (await readBuildLog(service, jobId, false)).text() });
  else for await (const chunk of await readBuildLog(service, jobId, false)) await writeTo(stdout, chunk);
  return EXIT.ok;
}

function sourceOf(image: ImageRecord): string {
  const { type, ref, name, path } = image.source as Record<'type' | 'ref' | 'name' | 'path', unknown>;
  if (typeof ref === 'string') return ref;
  const detail = name ?? path;
  return typeof detail === 'string' ? `${String(type)}:${detail}` : String(type);
}
