/** Previews through the engine, next to the same through the gateway alone: both answer alike. All of these tests share one engine. */
import './engine/requests.ts';
import './engine/errors.ts';
import './engine/sites.ts';
import './engine/routes.ts';
import './engine/front.ts';
