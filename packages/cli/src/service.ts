import { openService as open, type Service } from '@releap/sdk';
import { longFetch } from '@releap/sdk/node/long-fetch';
import { loadSettings } from './settings.ts';
import type { Context } from './terminal.ts';

/** The service of the settings. `signal` replaces the context's where work has to continue after a Ctrl-C. */
export function openService(context: Context, signal: AbortSignal = context.signal): Service {
  return open({ ...loadSettings(context), signal, longFetch });
}
