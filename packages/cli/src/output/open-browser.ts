import { spawn } from 'node:child_process';
import type { Context } from '../terminal.ts';

/** Opens a URL in the browser of a desktop session. @returns whether there is one */
export function openBrowser(context: Context, address: string): boolean {
  const { env, stderr } = context.terminal;
  const mac = process.platform === 'darwin';
  if (!stderr.isTTY || env['SSH_CONNECTION'] || (!mac && !env['DISPLAY'] && !env['WAYLAND_DISPLAY']))
    return false;
  const child = spawn(mac ? 'open' : 'xdg-open', [address], { stdio: 'ignore', detached: true });
  child.on('error', () => undefined);
  child.unref();
  return true;
}
