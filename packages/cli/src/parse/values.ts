/** Values of options: what people type, into what the API takes. */
import { usageError } from '../cli-error.ts';

/** `512`, `512m`, `2g`, `1.5g`, `1t` into MiB. A bare number is MiB. */
export function parseMebibytes(option: string, text: string): number {
  const match = /^(\d{1,9}(?:\.\d{1,6})?)\s*(?:([mgt])(?:i?b)?)?$/i.exec(text.trim());
  const factor = { m: 1, g: 1024, t: 1024 * 1024 }[match?.[2]?.toLowerCase() ?? 'm'] ?? 1;
  const mib = Math.round(Number(match?.[1]) * factor);
  if (!match || !Number.isSafeInteger(mib) || mib < 1)
    throw usageError(
      `${option} must be a size of at least 1 MiB, as in 512, 512m or 2g, but was ${JSON.stringify(text)}`,
    );
  return mib;
}

/** `10`, `10g`, `1t` into whole GiB. A bare number is GiB. */
export function parseGibibytes(option: string, text: string): number {
  const match = /^(\d{1,9})\s*(?:([gt])(?:i?b)?)?$/i.exec(text.trim());
  const gib = Number(match?.[1]) * (match?.[2]?.toLowerCase() === 't' ? 1024 : 1);
  if (!match || gib < 1)
    throw usageError(
      `${option} must be a size in whole GiB, as in 10, 10g or 1t, but was ${JSON.stringify(text)}`,
    );
  return gib;
}

export function parseNumber(option: string, text: string): number {
  const number = Number(text);
  if (text.trim() === '' || !Number.isFinite(number) || number <= 0)
    throw usageError(`${option} must be a number greater than 0, but was ${JSON.stringify(text)}`);
  return number;
}

/** `90`, `90s`, `5m`, `2h` into milliseconds. A bare number is seconds. */
export function parseDuration(option: string, text: string): number {
  const match = /^(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h)?$/i.exec(text.trim());
  const factor = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[match?.[2]?.toLowerCase() ?? 's'] ?? 1000;
  const ms = Math.round(Number(match?.[1]) * factor);
  if (!match || ms < 1)
    throw usageError(
      `${option} must be a duration, as in 30, 90s, 5m or 2h, but was ${JSON.stringify(text)}`,
    );
  return ms;
}

/** `--wait-timeout`, in milliseconds. */
export function waitMs({ waitTimeout }: { waitTimeout?: string }, otherwise: number): number {
  return waitTimeout === undefined ? otherwise : parseDuration('--wait-timeout', waitTimeout);
}

/** `8080`, `53/udp`. */
export function parsePort(text: string): { vm_port: number; proto: 'tcp' | 'udp' } {
  const match = /^(\d{1,5})(?:\/(tcp|udp))?$/i.exec(text);
  const port = Number(match?.[1]);
  if (!match || port < 1 || port > 65_535)
    throw usageError(
      `--port must be a port inside the sandbox from 1 to 65535, as in 8080 or 53/udp, but was ${JSON.stringify(text)}` +
        (text.includes(':') ? ' (the port outside is chosen by the service: rlp ps shows it)' : ''),
    );
  return { vm_port: port, proto: match[2]?.toLowerCase() === 'udp' ? 'udp' : 'tcp' };
}

/** `STORE:/path`, with `:ro` or `:rw` at its end where it is not as the store says. */
export function parseMount(text: string): { object_store: string; mount_path: string; read_only?: boolean } {
  const match = /^([^:]+):(\/.*?)(?::(ro|rw))?$/.exec(text);
  const [, object_store, mount_path, mode] = match ?? [];
  if (object_store === undefined || mount_path === undefined)
    throw usageError(
      `a mount is STORE:/path, with :ro for read-only, as in models:/mnt/models, but was ${JSON.stringify(text)}`,
    );
  return { object_store, mount_path, ...(mode !== undefined && { read_only: mode === 'ro' }) };
}

/** `VOLUME:/path`, with the folder of the volume at its end where not all of it is mounted. */
export function parseVolume(text: string): { volume: string; mount_path: string; subpath?: string } {
  const match = /^([^:]+):(\/[^:]*)(?::(.+))?$/.exec(text);
  const [, volume, mount_path, subpath] = match ?? [];
  if (volume === undefined || mount_path === undefined)
    throw usageError(
      `a volume is NAME:/path, or NAME:/path:SUBPATH, as in data:/srv/data:2026, but was ${JSON.stringify(text)}`,
    );
  // As other tools mean it.
  if (volume.includes('/') || volume === '.')
    throw usageError(
      `${JSON.stringify(volume)} is a local folder and no volume of the project: rlp volume cp copies it into one`,
    );
  return { volume, mount_path, ...(subpath !== undefined && { subpath }) };
}

/** `K=V`; a bare `K` takes the value from rlp's own environment, and is left out when there is none. */
export function parseEnv(
  entries: readonly string[],
  own: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const env = new Map<string, string>();
  for (const entry of entries) {
    const equals = entry.indexOf('=');
    const name = equals < 0 ? entry : entry.slice(0, equals);
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
      throw usageError(
        `--env needs NAME=VALUE with a name of letters, digits and _, but the name was ${JSON.stringify(name)}`,
      );
    const value = equals < 0 ? own[name] : entry.slice(equals + 1);
    if (value !== undefined) env.set(name, value);
  }
  return Object.fromEntries(env);
}

/** One end of a copy. */
export type CopyEnd = LocalEnd | { type: 'sandbox'; sandbox: string; path: string };
export type LocalEnd = { type: 'local'; path: string } | { type: 'stdio' };

/** `-`, `SANDBOX:PATH`, or a local path. A local path with a colon is written with a `/` or `./` before it. */
export function parseCopyEnd(text: string): CopyEnd {
  if (text === '-') return { type: 'stdio' };
  const colon = text.indexOf(':');
  const slash = text.indexOf('/');
  if (colon <= 0 || (slash >= 0 && slash < colon)) {
    if (text === '') throw usageError('a path to copy is empty');
    return { type: 'local', path: text };
  }
  const path = text.slice(colon + 1);
  if (path === '') throw usageError(`${JSON.stringify(text)} names no path: write SANDBOX:PATH`);
  return { type: 'sandbox', sandbox: text.slice(0, colon), path };
}

/** `SANDBOX:PATH`; without a path, the working directory. */
export function parseRemotePath(text: string): { sandbox: string; path: string } {
  const end = parseCopyEnd(text.endsWith(':') ? `${text}.` : text);
  if (end.type !== 'sandbox')
    throw usageError(`${JSON.stringify(text)} names no sandbox: write SANDBOX:PATH`);
  return end;
}

/** A whole number of at least 1. */
export function parseCount(option: string, text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text))
    throw usageError(`${option} must be a whole number of at least 1, but was ${JSON.stringify(text)}`);
  return Number(text);
}
