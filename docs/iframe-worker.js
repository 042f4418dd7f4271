// A page opened from disk may start no Worker, and the search is one. Here a frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const home = new URL(address, location.href)
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write(`<base href="${home}"><body></body>`)
      inside.document.close()
      const run = (script) => new Promise((done, failed) => {
        const element = inside.document.createElement("script")
        Object.assign(element, { src: new URL(script, home), async: false, onload: done, onerror: failed })
        inside.document.body.append(element)
      })
      this.tell = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      inside.importScripts = (...scripts) => Promise.all(scripts.map(run))
      this.ready = run(home)
    }
    postMessage(data) { this.ready.then(() => this.tell(data)) }
    terminate() { this.frame.remove() }
  }
}
