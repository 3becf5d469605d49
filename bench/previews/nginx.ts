/** nginx of this machine as a proxy to a server: what the preview gateway is compared with. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { freePort } from '@releap/testing/ports';
import { until } from '../processes.ts';

export interface Nginx extends AsyncDisposable {
  url: string;
}

/** One worker. Its user is root, who alone may connect to sandboxes. @param folder an empty one */
export async function startNginx(folder: string, upstream: string): Promise<Nginx> {
  await mkdir(folder, { recursive: true });
  const port = await freePort();
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name) => `  ${name}_temp_path ${join(folder, name)};`)
    .join('\n');
  await writeFile(
    join(folder, 'nginx.conf'),
    `user root;
worker_processes 1;
daemon off;
pid ${join(folder, 'pid')};
error_log stderr warn;
events { worker_connections 16384; }
http {
  access_log off;
${temporary}
  upstream guest { server ${upstream}; keepalive 64; }
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://guest;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
    }
  }
}
`,
  );
  const child: ChildProcess = spawn('nginx', ['-p', folder, '-c', join(folder, 'nginx.conf')], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const url = `http://127.0.0.1:${port}`;
  await until('nginx answers', async () => (await fetch(url).catch(() => undefined))?.ok === true);
  return {
    url,
    async [Symbol.asyncDispose]() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      await exited;
    },
  };
}
