/** Resolves the deploy of a function. Pure. */
import { Type } from 'typebox';
import {
  type FunctionActivation,
  type FunctionDeployRequest,
  FunctionForm,
  FunctionFormConfig,
  type FunctionSnapshotKind,
} from '../../wire/functions/deploy.ts';
import {
  BOUNDS,
  FUNCTION_DEFAULTS,
  PLATFORM_LIMITS,
  type PlatformLimits,
} from '../../wire/platform/limits.ts';
import type { ImageSource } from '../../wire/storage/image.ts';
import { badRequest, quote } from '../errors.ts';
import { validate } from '../http/validation.ts';
import { checkDockerfilePath, parseImageSource } from './image.ts';
import { checkEnv } from './names.ts';

/** The variable in which a handler finds the port that it listens on. */
export const FUNCTION_PORT_VARIABLE = 'RLP_FN_PORT';

/** A version of a function after every rule that needs no lookup, without its image. */
export interface ResolvedFunctionVersion {
  /** Empty: the entrypoint and command of the image. */
  handler: string[];
  port: number;
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
  timeout_s: number;
  scaledown_window_s: number;
  max_concurrency: number;
  /** Null: no bound. */
  max_instances: number | null;
  env: Record<string, string>;
  snapshot_kind: FunctionSnapshotKind;
  activate: FunctionActivation;
}

export interface ResolvedFunction extends ResolvedFunctionVersion {
  name: string;
  image: ImageSource & { type: 'registry' | 'named' };
}

/** `body` has passed `FunctionDeployRequest`. Throws a 400 for the first violated rule. */
export function resolveFunctionDeploy(
  body: FunctionDeployRequest,
  platform: PlatformLimits = PLATFORM_LIMITS,
): ResolvedFunction {
  const image = parseImageSource(body.image);
  if (image.type !== 'registry' && image.type !== 'named')
    throw badRequest(
      `image.type must be "registry" or "named", but was ${quote(image.type)}: a Dockerfile is deployed with a multipart form`,
    );
  return { name: body.name, image, ...resolveFunctionVersion(body, platform) };
}

/** The text parts of a deploy as a form. */
export type FunctionFormFields = Partial<Record<'name' | 'dockerfile' | 'config', string>>;

export interface ResolvedFunctionForm {
  name: string;
  /** The Dockerfile itself, or its path in the context, relative to its root. */
  dockerfile: { text: string } | { path: string };
  version: ResolvedFunctionVersion;
}

const TextParts = Type.Pick(FunctionForm, ['name', 'dockerfile', 'config']);

/** Throws a 400 for the first violated rule. */
export function resolveFunctionForm(
  fields: FunctionFormFields,
  platform: PlatformLimits = PLATFORM_LIMITS,
): ResolvedFunctionForm {
  const { name, dockerfile, config } = validate(TextParts, 'body', fields);
  return {
    name,
    dockerfile: resolveDockerfile(dockerfile ?? ''),
    version: resolveFunctionVersion(
      validate(FunctionFormConfig, 'body', parseConfig(config ?? '')),
      platform,
    ),
  };
}

/** A Dockerfile begins with an instruction, a comment or a parser directive, and paths have one line. */
const DOCKERFILE_TEXT = /^\s*(?:#|(?:FROM|ARG)\s)|\n/i;

function resolveDockerfile(sent: string): ResolvedFunctionForm['dockerfile'] {
  // Browsers and `FormData` send the lines of text fields with CRLF.
  const given = sent.replaceAll('\r\n', '\n');
  if (given === '') return { path: 'Dockerfile' };
  if (!DOCKERFILE_TEXT.test(given)) return { path: checkDockerfilePath(given) };
  if (given.length > BOUNDS.dockerfileChars)
    throw badRequest(
      `dockerfile has ${given.length} characters; at most ${BOUNDS.dockerfileChars} are allowed: put it into the context`,
    );
  return { text: given };
}

function parseConfig(text: string): unknown {
  if (text.trim() === '') return {};
  let config: unknown;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw badRequest(`config must be a JSON object, but is no JSON: ${(error as Error).message}`);
  }
  if (config === null || typeof config !== 'object' || Array.isArray(config))
    throw badRequest(`config must be a JSON object, but was ${quote(config)}`);
  return config;
}

function resolveFunctionVersion(body: FunctionFormConfig, platform: PlatformLimits): ResolvedFunctionVersion {
  const { vcpus = FUNCTION_DEFAULTS.vcpus } = body;
  const { mem_mib = FUNCTION_DEFAULTS.memMib, scratch_mib = FUNCTION_DEFAULTS.scratchMib } = body;
  refuseOver('vcpus', vcpus, platform.burstCpuMax, 'cores');
  refuseOver('mem_mib', mem_mib, platform.burstMemMib, 'MiB');
  refuseOver('scratch_mib', scratch_mib, platform.burstScratchMib, 'MiB');
  return {
    handler: checkHandler(body.handler ?? []),
    port: body.port ?? FUNCTION_DEFAULTS.port,
    vcpus,
    mem_mib,
    scratch_mib,
    timeout_s: body.timeout_s ?? FUNCTION_DEFAULTS.timeoutS,
    scaledown_window_s: body.scaledown_window_s ?? FUNCTION_DEFAULTS.scaledownWindowS,
    max_concurrency: body.max_concurrency ?? FUNCTION_DEFAULTS.maxConcurrency,
    max_instances: body.max_instances ?? null,
    env: checkFunctionEnv(body.env ?? {}),
    snapshot_kind: body.snapshot_kind ?? FUNCTION_DEFAULTS.snapshotKind,
    activate: body.activate ?? FUNCTION_DEFAULTS.activate,
  };
}

/** @param most as the operator has set it, in seconds */
export function checkScaledownWindow(seconds: number, most: number): void {
  if (seconds > most)
    throw badRequest(
      `scaledown_window_s must be at most ${most} here, but was ${seconds}: an instance without requests is kept no longer`,
    );
}

function refuseOver(field: string, value: number, most: number, unit: string): void {
  if (value > most) throw badRequest(`${field} asks for ${value} ${unit}; an instance has at most ${most}`);
}

function checkHandler(handler: string[]): string[] {
  if (handler[0] === '')
    throw badRequest(
      'handler[0] must be a program, but was empty; leave handler out for the entrypoint of the image',
    );
  const bytes = handler.reduce((total, argument) => total + Buffer.byteLength(argument, 'utf8'), 0);
  if (bytes > BOUNDS.handlerBytes)
    throw badRequest(
      `handler has ${bytes} bytes in all; at most ${BOUNDS.handlerBytes} (64 KiB) are allowed`,
    );
  return handler;
}

function checkFunctionEnv(given: Record<string, string>): Record<string, string> {
  const env = checkEnv(given);
  if (Object.hasOwn(env, FUNCTION_PORT_VARIABLE))
    throw badRequest(
      `env.${FUNCTION_PORT_VARIABLE} cannot be set: the handler finds its port there. Set port instead`,
    );
  const bytes = Object.entries(env).reduce(
    (total, [name, value]) => total + name.length + Buffer.byteLength(value, 'utf8'),
    0,
  );
  if (bytes > BOUNDS.functionEnvBytes)
    throw badRequest(
      `env has ${bytes} bytes in all; at most ${BOUNDS.functionEnvBytes} (128 KiB) are allowed for a function`,
    );
  return env;
}
