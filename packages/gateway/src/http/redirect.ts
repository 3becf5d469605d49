import type { ServerResponse } from 'node:http';

/** Sends a browser to a URL, with a cookie for this host. The URL that it comes from is neither cached nor passed on. */
export function sendRedirect(
  response: ServerResponse,
  { location, cookie }: { location: string; cookie: string },
): void {
  response.writeHead(303, {
    location,
    'set-cookie': cookie,
    'cache-control': 'no-store',
    'referrer-policy': 'no-referrer',
    'content-length': 0,
  });
  response.end();
}
