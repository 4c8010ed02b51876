"use strict";
const cards = [...document.querySelectorAll("article")];
const choices = [...document.querySelectorAll("select")];
const overlays = document.getElementById("overlays");
const update = () => {
  let shown = 0;
  for (const card of cards) {
    const classes = JSON.parse(card.dataset.classes);
    card.hidden = !choices.every((each) => each.value === "" || classes[each.dataset.column] === each.value);
    shown += card.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = `${shown} shown`;
  document.querySelector(".cards").classList.toggle("plain", !overlays.checked);
};
for (const each of [...choices, overlays]) each.addEventListener("change", update);
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
update();
