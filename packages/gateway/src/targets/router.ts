import { notFound, quote } from '@releap/contract';
import type { RequestHead, Route, TargetKind } from './target.ts';

/** Routes a request to the first kind that matches. */
export function createRouter(kinds: readonly TargetKind[]): (request: RequestHead) => Route {
  return (request) => {
    for (const kind of kinds) {
      const route = kind.route(request);
      if (route !== undefined) return route;
    }
    throw notFound(`no such path: ${quote(request.url.split('?', 1)[0] ?? '')}`, 'route_not_found');
  };
}
