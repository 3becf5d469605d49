/** Why a build has failed, in one line for its user. */
import { ImageError } from '../image/image-error.ts';
import { BUILD_DISK } from '../image/builtin/builder.ts';
import { sizeText } from './build-limits.ts';
import type { BuildLimits } from './build-limits.ts';
import { lineOf } from './step-lines.ts';

/** What the micro-VM says of the limits that a build has met. Only for messages: a build could claim anything. */
export interface Exhaustion {
  /** Processes that the guest's kernel has ended for want of memory. */
  oomKills: number;
  /** How often a process could not be started because there were too many. */
  forksRefused: number;
}

export interface FailedBuild extends Exhaustion {
  /** The last line of buildah that begins with `Error:`. */
  error: string;
  /** The end of the output. */
  output: string;
  dockerfile: string;
}

const REASON_CHARS_MAX = 600;
const STEP_CHARS_MAX = 120;
const NO_SPACE = /no space left on device/i;

export function buildFailed(message: string): ImageError {
  return new ImageError('build-failed', oneLine(message).slice(0, REASON_CHARS_MAX));
}

export function outOfDisk({ diskMib }: Pick<BuildLimits, 'diskMib'>): ImageError {
  return buildFailed(`the build ran out of its ${sizeText(diskMib)} disk`);
}

export function isOutOfDisk(text: string): boolean {
  return NO_SPACE.test(text);
}

export function explainFailure(failed: FailedBuild, limits: BuildLimits): ImageError {
  const { error, output, oomKills, forksRefused } = failed;
  if (isOutOfDisk(error) || isOutOfDisk(output)) return outOfDisk(limits);
  const [, unknown] = /Unknown instruction: "([^"]*)"/i.exec(error) ?? [];
  if (unknown !== undefined) return buildFailed(`the Dockerfile has an unknown instruction: ${unknown}`);
  const at = stepOf(failed);
  const where = at === undefined ? '' : `: ${at.text}`;
  if (oomKills > 0)
    return buildFailed(`the build ran out of its ${sizeText(limits.memMib)} of memory${where}`);
  if (forksRefused > 0) {
    return buildFailed(`the build had more than ${limits.processes} processes at a time${where}`);
  }
  if (at === undefined) return buildFailed(withoutPaths(error) || 'buildah ended without a reason');
  const [, status] = /exit status (\d+)\s*$/.exec(at.reason) ?? [];
  if (status !== undefined && /^RUN\b/i.test(at.text))
    return buildFailed(`${at.text} exited with status ${status}`);
  if (/^(?:COPY|ADD)\b(?!.*--from)/i.test(at.text) && /no such file|no items matching/i.test(at.reason)) {
    return buildFailed(`${at.text}: no such file in the context`);
  }
  return buildFailed(`${at.text}: ${withoutPaths(at.reason)}`);
}

/** The step that has failed, with its line where that is known, and what buildah says of it. */
function stepOf({ error, dockerfile }: FailedBuild): { text: string; reason: string } | undefined {
  const [, quoted, reason = ''] = /building at STEP ("(?:[^"\\]|\\.)*"): (.*)$/s.exec(error) ?? [];
  if (quoted === undefined) return undefined;
  const step = unquoted(quoted);
  const line = lineOf(dockerfile, step);
  const text = oneLine(step);
  const shown = text.length > STEP_CHARS_MAX ? `${text.slice(0, STEP_CHARS_MAX)}…` : text;
  return { text: line === undefined ? shown : `${shown} (line ${line})`, reason };
}

/** Go quotes almost as JSON does. */
function unquoted(text: string): string {
  try {
    return JSON.parse(text) as string;
  } catch {
    return text.slice(1, -1);
  }
}

function withoutPaths(text: string): string {
  return text
    .replace(/^Error: /, '')
    .replaceAll(`${BUILD_DISK}/context`, '')
    .replaceAll(`${BUILD_DISK}/`, '');
}

function oneLine(text: string): string {
  // Control characters would reach terminals.
  return text.replaceAll(/[\p{Cc}\s]+/gu, ' ').trim();
}
